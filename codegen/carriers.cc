#include "codegen/carriers.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <unordered_map>

namespace verbena::codegen {
namespace {
using google::protobuf::Descriptor;
using google::protobuf::FileDescriptor;

void AppendMessages(const Descriptor& message, std::vector<const Descriptor*>& out) {
  if (message.options().map_entry()) return;
  for (int i = 0; i < message.nested_type_count(); ++i)
    AppendMessages(*message.nested_type(i), out);
  out.push_back(&message);
}

template <class Scope>
void AppendExtensionTypes(const Scope& scope, std::vector<const Descriptor*>& out) {
  for (int i = 0; i < scope.extension_count(); ++i) {
    if (const Descriptor* type = scope.extension(i)->message_type()) out.push_back(type);
  }
}

// Where the search starts; repetitions do not matter.
std::vector<const Descriptor*> Roots(const FileDescriptor& file) {
  std::vector<const Descriptor*> roots = MessagesOf(file);
  AppendExtensionTypes(file, roots);
  for (const Descriptor* message : MessagesOf(file)) AppendExtensionTypes(*message, roots);
  for (int i = 0; i < file.service_count(); ++i) {
    for (int k = 0; k < file.service(i)->method_count(); ++k) {
      roots.push_back(file.service(i)->method(k)->input_type());
      roots.push_back(file.service(i)->method(k)->output_type());
    }
  }
  return roots;
}
}  // namespace

bool IsTensorDescriptor(const Descriptor& message) {
  return message.full_name() == "verbena.v1.Tensor" || message.full_name() == "verbena.v1.Buffer";
}

std::vector<const Descriptor*> MessagesOf(const FileDescriptor& file) {
  std::vector<const Descriptor*> messages;
  for (int i = 0; i < file.message_type_count(); ++i) {
    AppendMessages(*file.message_type(i), messages);
  }
  return messages;
}

Carriers::Carriers(const FileDescriptor& file) {
  std::unordered_set<const Descriptor*> seen;
  std::unordered_map<const Descriptor*, std::vector<const Descriptor*>> users;
  std::vector<const Descriptor*> carried;  // whose users carry, not yet looked at
  std::vector<const Descriptor*> pending = Roots(file);
  while (!pending.empty()) {
    const Descriptor* message = pending.back();
    pending.pop_back();
    if (!seen.insert(message).second) continue;
    if (IsTensorDescriptor(*message)) {
      carried.push_back(message);
      continue;
    }
    for (int i = 0; i < message->field_count(); ++i) {
      const Descriptor* type = message->field(i)->message_type();
      if (type == nullptr) continue;
      users[type].push_back(message);
      pending.push_back(type);
    }
  }
  while (!carried.empty()) {
    const Descriptor* message = carried.back();
    carried.pop_back();
    for (const Descriptor* user : users[message]) {
      if (carrying_.insert(user).second) carried.push_back(user);
    }
  }
}

}  // namespace verbena::codegen
