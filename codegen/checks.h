#pragma once
// What a schema may not ask for. Everything that would compile and then lose a tensor, or not
// compile at all, is refused here, at its place in the .proto.
#include <string>
#include <vector>

namespace google::protobuf {
class FileDescriptor;
}

namespace verbena::codegen {

// One "file:line:column: text" for each error, in no promised order; empty when the file can be
// generated.
std::vector<std::string> CheckFile(const google::protobuf::FileDescriptor& file);

}  // namespace verbena::codegen
