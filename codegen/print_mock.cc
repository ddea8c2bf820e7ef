#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "codegen/printers.h"

namespace verbena::codegen {
namespace {
using absl::StrAppend;
using absl::SubstituteAndAppend;

void PrintClass(const Service& service, std::string& out) {
  SubstituteAndAppend(&out,
                      "\n// Give each method that the test calls a body, before the first call:\n"
                      "//   mock.on_Method = [&](auto&...) { ... };\n"
                      "// A method without one ends with UNIMPLEMENTED.\n"
                      "class $0::Mock final : public $0::Service {\n public:\n",
                      service.name);
  for (const Method& method : service.methods) {
    const Signature s = SignatureOf(method);
    SubstituteAndAppend(&out, "  ::std::function<$0($1)> $2;\n", s.result, s.types, method.mock);
  }
  StrAppend(&out, "\n");
  for (const Method& method : service.methods) {
    const Signature s = SignatureOf(method);
    SubstituteAndAppend(&out, "  $0 $1($2) override {\n", s.result, method.name, s.parameters);
    SubstituteAndAppend(&out,
                        "    if (!this->$0) return ::verbena::internal::Unimplemented();\n"
                        "    return this->$0($1);\n  }\n",
                        method.mock, s.forward);
  }
  SubstituteAndAppend(&out, "  // @@protoc_insertion_point(mock_scope:$0)\n};\n\n",
                      service.full_name);
}
}  // namespace

std::string PrintMock(const File& file) {
  std::string out = Banner(file);
  SubstituteAndAppend(&out,
                      "#pragma once\n\n#include <functional>\n#include <utility>\n\n"
                      "#include \"$0.verbena.h\"\n#include \"verbena/testing.h\"\n"
                      "// @@protoc_insertion_point(includes)\n\n",
                      file.base);
  StrAppend(&out, OpenNamespace(file));
  for (const Service& service : file.services) PrintClass(service, out);
  StrAppend(&out, "// @@protoc_insertion_point(namespace_scope)\n", CloseNamespace(file));
  return out;
}

}  // namespace verbena::codegen
