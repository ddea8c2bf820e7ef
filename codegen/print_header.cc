#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "codegen/printers.h"

namespace verbena::codegen {
namespace {
using absl::StrAppend;
using absl::SubstituteAndAppend;

void PrintIncludes(const File& file, std::string& out) {
  StrAppend(&out, "#pragma once\n\n#include <memory>\n#include <utility>\n\n");
  SubstituteAndAppend(&out, "#include \"$0.pb.h\"\n", file.base);
  for (const std::string& base : file.includes) {
    SubstituteAndAppend(&out, "#include \"$0.verbena.h\"\n", base);
  }
  SubstituteAndAppend(&out,
                      "#include \"verbena/generated.h\"\n"
                      "// @@protoc_insertion_point(includes)\n\n"
                      "#if VERBENA_GENERATED_VERSION != 1\n"
                      "#error \"$0.verbena.h was generated for another version of Verbena: "
                      "regenerate it with this version's protoc-gen-verbena\"\n"
                      "#endif\n\n",
                      file.base);
}

void PrintVisitors(const File& file, std::string& out) {
  if (file.carrying.empty()) return;
  StrAppend(
      &out,
      "// Messages that carry tensors: verbena::Parcel<T> holds such a message with its tensors.\n"
      "namespace verbena {\n");
  for (const CarryingMessage& message : file.carrying) {
    SubstituteAndAppend(
        &out,
        "template <>\nstruct TensorFields<$0> {\n"
        "  static void Visit(const $0& message, ::verbena::DescriptorVisitor& visitor);\n};\n",
        message.type);
  }
  StrAppend(&out, "}  // namespace verbena\n\n");
}

void PrintOuter(const Service& service, std::string& out) {
  StrAppend(&out, "\n", service.comment);
  SubstituteAndAppend(&out,
                      "class $0 final {\n public:\n"
                      "  static constexpr const char* service_full_name() { return \"$1\"; }\n"
                      "  class Stub;     // what a client calls\n"
                      "  class Service;  // what a server implements\n"
                      "  class Mock;     // a Service for tests, in the .verbena_mock.h\n"
                      "  // The methods' names as metrics, traces and logs have them.\n"
                      "  struct Paths {\n",
                      service.name, service.full_name);
  for (const Method& method : service.methods) {
    SubstituteAndAppend(&out, "    static constexpr const char* $0 = \"$1\";\n", method.name,
                        method.path);
  }
  StrAppend(&out, "  };\n};\n\n");
}

void PrintStub(const Service& service, std::string& out) {
  SubstituteAndAppend(&out,
                      "// A value: copies share the channel. Any thread.\n"
                      "class $0::Stub final {\n public:\n"
                      "  explicit Stub(::std::shared_ptr<::verbena::Channel> channel)\n"
                      "      : verbena_core_(::std::move(channel)) {}\n\n",
                      service.name);
  for (const Method& method : service.methods) {
    const Signature s = SignatureOf(method);
    SubstituteAndAppend(&out, "$0  $1 $2($3 = {}) const;\n", method.comment, s.stub_result,
                        method.name, s.stub_parameters);
  }
  SubstituteAndAppend(&out,
                      "  // @@protoc_insertion_point(stub_scope:$0)\n\n"
                      " private:\n  ::verbena::internal::StubCore verbena_core_;\n};\n\n",
                      service.full_name);
}

void PrintService(const Service& service, std::string& out) {
  SubstituteAndAppend(&out,
                      "// Override what the server implements; the rest ends with UNIMPLEMENTED.\n"
                      "class $0::Service : public ::verbena::Service {\n public:\n",
                      service.name);
  for (const Method& method : service.methods) {
    const Signature s = SignatureOf(method);
    StrAppend(&out, method.comment);
    if (method.blocking) StrAppend(&out, "  // Runs on a worker thread and may block.\n");
    SubstituteAndAppend(&out, "  virtual $0 $1($2);\n", s.result, method.name, s.parameters);
  }
  SubstituteAndAppend(&out,
                      "  const ::verbena::internal::ServiceInfo& verbena_info() const final;\n"
                      "  // @@protoc_insertion_point(service_scope:$0)\n};\n\n",
                      service.full_name);
}
}  // namespace

std::string PrintHeader(const File& file) {
  std::string out = Banner(file);
  PrintIncludes(file, out);
  PrintVisitors(file, out);
  StrAppend(&out, OpenNamespace(file));
  for (const Service& service : file.services) {
    PrintOuter(service, out);
    PrintStub(service, out);
    PrintService(service, out);
  }
  StrAppend(&out, "// @@protoc_insertion_point(namespace_scope)\n", CloseNamespace(file));
  return out;
}

}  // namespace verbena::codegen
