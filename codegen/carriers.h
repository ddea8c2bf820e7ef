#pragma once
// Which messages can reach a verbena.v1.Tensor or Buffer through their fields, at any depth. Least
// fixpoint over the graph of messages: a cycle alone carries nothing. Linear in the number of
// fields that can be reached.
#include <unordered_set>
#include <vector>

namespace google::protobuf {
class Descriptor;
class FileDescriptor;
}  // namespace google::protobuf

namespace verbena::codegen {

// verbena.v1.Tensor or verbena.v1.Buffer.
bool IsTensorDescriptor(const google::protobuf::Descriptor& message);

// All messages of the file, nested ones before the message that holds them; no map entries.
std::vector<const google::protobuf::Descriptor*> MessagesOf(
    const google::protobuf::FileDescriptor& file);

class Carriers {
 public:
  // Knows the messages of `file`, those that its methods and extensions name, and all that can be
  // reached from them.
  explicit Carriers(const google::protobuf::FileDescriptor& file);

  // False for Tensor and Buffer: they are what is carried.
  bool Carries(const google::protobuf::Descriptor& message) const {
    return carrying_.count(&message) != 0;
  }

 private:
  std::unordered_set<const google::protobuf::Descriptor*> carrying_;
};

}  // namespace verbena::codegen
