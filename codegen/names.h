#pragma once
// C++ names for what protobuf names: no keyword, no macro of the standard library, nothing that the
// generated classes use themselves. Messages and fields keep the names that protoc's own generator
// gives them.
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace google::protobuf {
class Descriptor;
class FieldDescriptor;
class FileDescriptor;
class ServiceDescriptor;
}  // namespace google::protobuf

namespace verbena::codegen {

// "demo/inference.proto" -> "demo/inference".
std::string BaseName(absl::string_view proto);

// "demo.v1" -> "demo::v1".
std::string NamespaceOf(const google::protobuf::FileDescriptor& file);

// "::demo::Outer_Inner".
std::string QualifiedName(const google::protobuf::Descriptor& message);

// "input", "class_".
std::string AccessorName(const google::protobuf::FieldDescriptor& field);

std::string ServiceName(const google::protobuf::ServiceDescriptor& service);

// One pair for each method, in order; all the names of a service differ from each other.
struct MethodNames {
  std::string method;  // "Infer"
  std::string mock;    // "on_Infer"
};
std::vector<MethodNames> MethodNamesOf(const google::protobuf::ServiceDescriptor& service);

// A .proto's comment as C++ lines with `indent`, or nothing. No line can continue onto the code
// below it.
std::string CommentLines(absl::string_view text, absl::string_view indent);

}  // namespace verbena::codegen
