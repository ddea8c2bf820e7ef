#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "codegen/printers.h"

namespace verbena::codegen {
namespace {
using absl::StrAppend;
using absl::Substitute;
using absl::SubstituteAndAppend;

// Only fields that are present are entered, so a oneof needs nothing of its own.
void PrintField(const TensorField& field, std::string& out) {
  const auto visit = [&field](absl::string_view value) {
    if (field.is_descriptor)
      return Substitute("visitor.Visit($0, \"$1\");\n", value, field.full_name);
    return Substitute("TensorFields<$0>::Visit($1, visitor);\n", field.type, value);
  };
  const std::string get = Substitute("message.$0()", field.accessor);
  switch (field.shape) {
    case TensorField::Shape::kSingular:
      StrAppend(&out, "  if (message.has_", field.accessor, "()) ", visit(get));
      break;
    case TensorField::Shape::kRepeated:
      StrAppend(&out, "  for (const auto& item : ", get, ") ", visit("item"));
      break;
    case TensorField::Shape::kMap:
      StrAppend(&out, "  for (const auto& entry : ", get, ") ", visit("entry.second"));
      break;
  }
}

void PrintVisitors(const File& file, std::string& out) {
  if (file.carrying.empty()) return;
  StrAppend(&out, "namespace verbena {\n");
  for (const CarryingMessage& message : file.carrying) {
    SubstituteAndAppend(&out,
                        "void TensorFields<$0>::Visit(const $0& message, "
                        "::verbena::DescriptorVisitor& visitor) {\n",
                        message.type);
    for (const TensorField& field : message.fields) PrintField(field, out);
    StrAppend(&out, "}\n");
  }
  StrAppend(&out, "}  // namespace verbena\n\n");
}

absl::string_view KindName(Kind kind) {
  switch (kind) {
    case Kind::kUnary:
      return "kUnary";
    case Kind::kServerStreaming:
      return "kServerStreaming";
    case Kind::kClientStreaming:
      return "kClientStreaming";
    case Kind::kBidi:
      return "kBidi";
  }
  return "";
}

std::string MethodTable(const Service& service) {
  return absl::StrCat("verbena_methods_", service.name);
}

// An entry is {path, kind, idempotent, request_bytes_max, reply_bytes_max, request, reply, handle,
// handle_blocking}.
void PrintMethodEntry(const Service& service, const Method& method, std::string& out) {
  const Signature s = SignatureOf(method);
  SubstituteAndAppend(&out,
                      "    {\"$0\", ::verbena::MethodKind::$1, $2, $3u, $4u,\n     $5,\n     $6,\n",
                      method.path, KindName(method.kind), method.idempotent ? "true" : "false",
                      method.request_bytes_max, method.reply_bytes_max, s.request_ops, s.reply_ops);
  const std::string handle = Substitute(
      "[](const ::verbena::internal::HandlerArgs& args) -> $0 {\n"
      "       return static_cast<$1::Service&>(args.service).$2($3);\n     }",
      s.result, service.name, method.name, s.unpack);
  if (method.blocking) {
    StrAppend(&out, "     nullptr, ", handle, "},\n");
  } else {
    StrAppend(&out, "     ", handle, ",\n     nullptr},\n");
  }
}

void PrintTable(const Service& service, std::string& out) {
  const std::string table = MethodTable(service);
  StrAppend(&out, "\nnamespace {\n");
  if (!service.methods.empty()) {
    SubstituteAndAppend(&out, "const ::verbena::internal::MethodInfo $0[] = {\n", table);
    for (const Method& method : service.methods) PrintMethodEntry(service, method, out);
    StrAppend(&out, "};\n");
  }
  SubstituteAndAppend(
      &out,
      "const ::verbena::internal::ServiceInfo verbena_info_$0 = {\"$1\", $2};\n}  // namespace\n\n",
      service.name, service.full_name, service.methods.empty() ? "{}" : table);
}

void PrintService(const Service& service, std::string& out) {
  PrintTable(service, out);
  for (size_t i = 0; i < service.methods.size(); ++i) {
    const Method& method = service.methods[i];
    const Signature s = SignatureOf(method);
    SubstituteAndAppend(&out, "$0 $1::Stub::$2($3) const {\n", s.stub_result, service.name,
                        method.name, s.stub_parameters);
    SubstituteAndAppend(&out, "  return verbena_core_.$0($1[$2], $3);\n}\n", s.start,
                        MethodTable(service), i, s.start_arguments);
  }
  for (const Method& method : service.methods) {
    const Signature s = SignatureOf(method);
    SubstituteAndAppend(&out, "$0 $1::Service::$2($3) {\n", s.result, service.name, method.name,
                        s.types);
    StrAppend(&out, "  return ::verbena::internal::Unimplemented();\n}\n");
  }
  SubstituteAndAppend(
      &out,
      "const ::verbena::internal::ServiceInfo& $0::Service::verbena_info() const {\n"
      "  return verbena_info_$0;\n}\n",
      service.name);
}
}  // namespace

std::string PrintSource(const File& file) {
  std::string out = Banner(file);
  SubstituteAndAppend(&out, "#include \"$0.verbena.h\"\n// @@protoc_insertion_point(includes)\n\n",
                      file.base);
  PrintVisitors(file, out);
  StrAppend(&out, OpenNamespace(file));
  for (const Service& service : file.services) PrintService(service, out);
  StrAppend(&out, "// @@protoc_insertion_point(namespace_scope)\n", CloseNamespace(file));
  return out;
}

}  // namespace verbena::codegen
