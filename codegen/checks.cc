#include "codegen/checks.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "codegen/carriers.h"
#include "codegen/names.h"

namespace verbena::codegen {
namespace {
using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorProto;
using google::protobuf::FileOptions;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;
using google::protobuf::SourceLocation;

// protoc counts from 0, compilers and editors from 1. Without source information: the file's
// beginning.
std::string Where(const FileDescriptor& file, bool found, const SourceLocation& at) {
  if (!found) return absl::StrCat(file.name(), ":1:1: ");
  return absl::StrCat(file.name(), ":", at.start_line + 1, ":", at.start_column + 1, ": ");
}

template <class D>
std::string Where(const D& descriptor) {
  SourceLocation at;
  const bool found = descriptor.GetSourceLocation(&at);
  return Where(*descriptor.file(), found, at);
}

std::string Where(const FileDescriptor& file, const std::vector<int>& path) {
  SourceLocation at;
  const bool found = file.GetSourceLocation(path, &at);
  return Where(file, found, at);
}

class Checker {
 public:
  explicit Checker(const FileDescriptor& file) : file_(file), carriers_(file) {}

  std::vector<std::string> Check() {
    CheckName();
    CheckFileScope();
    CheckExtensions(file_);
    for (const Descriptor* message : MessagesOf(file_)) CheckExtensions(*message);
    CollectTopLevelNames();
    for (int i = 0; i < file_.service_count(); ++i) CheckService(*file_.service(i));
    return std::move(errors_);
  }

 private:
  // The name goes into #include lines.
  void CheckName() {
    for (char c : file_.name()) {
      if (c == '"' || c == '\\' || absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
        Add(Where(file_, {}), "the file's name has a character that an #include cannot have");
        return;
      }
    }
  }

  void CheckFileScope() {
    if (file_.options().cc_generic_services()) {
      Add(Where(file_, {FileDescriptorProto::kOptionsFieldNumber,
                        FileOptions::kCcGenericServicesFieldNumber}),
          "cc_generic_services = true makes protoc write other classes under the services' names: "
          "remove it");
    }
    if (file_.package() == "verbena" || file_.package() == "verbena.internal") {
      Add(Where(file_, {FileDescriptorProto::kPackageFieldNumber}),
          absl::StrCat("package ", file_.package(),
                       " is the library's own namespace: take another, verbena.something will do"));
    }
  }

  // The visitor of a message is generated with the message, when nobody knows its extensions yet.
  template <class Scope>
  void CheckExtensions(const Scope& scope) {
    for (int i = 0; i < scope.extension_count(); ++i) {
      const FieldDescriptor& field = *scope.extension(i);
      const Descriptor* type = field.message_type();
      if (type == nullptr || !(IsTensorDescriptor(*type) || carriers_.Carries(*type))) continue;
      Add(Where(field), absl::StrCat("extension ", field.full_name(), " carries tensors, and ",
                                     field.containing_type()->full_name(),
                                     " would travel without them: make it a field"));
    }
  }

  void CheckService(const ServiceDescriptor& service) {
    const auto [taken, is_free] =
        top_level_.emplace(ServiceName(service), absl::StrCat("service ", service.full_name()));
    if (!is_free) {
      Add(Where(service),
          absl::StrCat("service ", service.full_name(), " and ", taken->second,
                       " both become the C++ name ", taken->first, ": rename one of them"));
    }
    for (int i = 0; i < service.method_count(); ++i) {
      const MethodDescriptor& method = *service.method(i);
      CheckParameter(method, *method.input_type());
      CheckParameter(method, *method.output_type());
    }
  }

  void CheckParameter(const MethodDescriptor& method, const Descriptor& type) {
    if (!IsTensorDescriptor(type)) return;
    Add(Where(method),
        absl::StrCat("method ", method.name(), " takes or returns a bare ", type.full_name(),
                     ", which only describes a payload: make it a field of a message"));
  }

  // What protoc's own generator declares at namespace scope and a service could be called too.
  void CollectTopLevelNames() {
    for (const Descriptor* message : MessagesOf(file_)) {
      AddTopLevel(QualifiedName(*message), absl::StrCat("message ", message->full_name()));
      for (int i = 0; i < message->enum_type_count(); ++i) {
        const EnumDescriptor& type = *message->enum_type(i);
        const std::string outer = QualifiedName(*message) + "_";
        AddTopLevel(outer + std::string(type.name()), absl::StrCat("enum ", type.full_name()));
        for (int k = 0; k < type.value_count(); ++k) {
          AddTopLevel(absl::StrCat(outer, type.name(), "_", type.value(k)->name()),
                      absl::StrCat("enum value ", type.value(k)->full_name()));
        }
      }
    }
  }

  void AddTopLevel(const std::string& qualified, std::string what) {
    top_level_.emplace(qualified.substr(qualified.rfind(':') + 1), std::move(what));
  }

  void Add(const std::string& where, const std::string& text) { errors_.push_back(where + text); }

  const FileDescriptor& file_;
  const Carriers carriers_;
  std::map<std::string, std::string> top_level_;  // C++ name -> what has it
  std::vector<std::string> errors_;
};
}  // namespace

std::vector<std::string> CheckFile(const FileDescriptor& file) { return Checker(file).Check(); }

}  // namespace verbena::codegen
