#include "codegen/names.h"

#include <google/protobuf/compiler/cpp/names.h>
#include <google/protobuf/descriptor.h>

#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace verbena::codegen {
namespace {
namespace cpp = google::protobuf::compiler::cpp;
using google::protobuf::ServiceDescriptor;
using Names = std::set<std::string>;

// Keywords, and macros of headers that protobuf or the runtime include.
const Names& Unusable() {
  static const Names& names =
      *new Names{"NULL",     "EOF",          "alignas",   "alignof",   "and",
                 "and_eq",   "asm",          "assert",    "auto",      "bitand",
                 "bitor",    "bool",         "break",     "case",      "catch",
                 "char",     "char16_t",     "char32_t",  "char8_t",   "class",
                 "co_await", "co_return",    "co_yield",  "compl",     "concept",
                 "const",    "const_cast",   "consteval", "constexpr", "constinit",
                 "continue", "decltype",     "default",   "delete",    "do",
                 "double",   "dynamic_cast", "else",      "enum",      "errno",
                 "explicit", "export",       "extern",    "false",     "float",
                 "for",      "friend",       "goto",      "if",        "inline",
                 "int",      "linux",        "long",      "mutable",   "namespace",
                 "new",      "noexcept",     "not",       "not_eq",    "nullptr",
                 "operator", "or",           "or_eq",     "private",   "protected",
                 "public",   "register",     "requires",  "return",    "reinterpret_cast",
                 "short",    "signed",       "sizeof",    "static",    "static_assert",
                 "stderr",   "stdin",        "stdout",    "struct",    "static_cast",
                 "switch",   "template",     "this",      "throw",     "thread_local",
                 "true",     "try",          "typedef",   "typeid",    "typename",
                 "union",    "unix",         "unsigned",  "using",     "virtual",
                 "void",     "volatile",     "wchar_t",   "while",     "xor",
                 "xor_eq"};
  return names;
}

// What the class of a service declares inside.
const Names& Members() {
  static const Names& names = *new Names{"Stub", "Service", "Mock", "Paths", "service_full_name"};
  return names;
}

std::string Escaped(std::string name) {
  if (Unusable().count(name) != 0) name += "_";
  return name;
}

// Appends underscores until nobody has the name, then takes it.
std::string Take(std::string name, Names& used) {
  while (!used.insert(name).second) name += "_";
  return name;
}

bool Reserved(const std::string& method) {
  return Members().count(method) != 0 || Unusable().count(method) != 0 ||
         absl::StartsWith(method, "verbena_");
}
}  // namespace

std::string BaseName(absl::string_view proto) { return cpp::StripProto(std::string(proto)); }

std::string NamespaceOf(const google::protobuf::FileDescriptor& file) {
  std::vector<std::string> parts;
  for (absl::string_view part : absl::StrSplit(absl::string_view(file.package()), '.')) {
    parts.push_back(Escaped(std::string(part)));
  }
  return absl::StrJoin(parts, "::");
}

std::string QualifiedName(const google::protobuf::Descriptor& message) {
  return cpp::QualifiedClassName(&message);
}

std::string AccessorName(const google::protobuf::FieldDescriptor& field) {
  return std::string(cpp::FieldName(&field));
}

std::string ServiceName(const ServiceDescriptor& service) {
  // A class called like a namespace that generated code relies on would hide it from its whole
  // package.
  static const Names& namespaces = *new Names{"absl", "google", "std", "verbena"};
  std::string name = Escaped(std::string(service.name()));
  if (Members().count(name) != 0 || namespaces.count(name) != 0) name += "_";
  return name;
}

std::vector<MethodNames> MethodNamesOf(const ServiceDescriptor& service) {
  // Names that can stay go first, so that adding `rpc delete` never renames `rpc delete_`.
  Names used = Members();
  for (int i = 0; i < service.method_count(); ++i) {
    std::string name(service.method(i)->name());
    if (!Reserved(name)) used.insert(std::move(name));
  }
  std::vector<MethodNames> names;
  for (int i = 0; i < service.method_count(); ++i) {
    std::string name(service.method(i)->name());
    if (Reserved(name)) name = Take(name + "_", used);
    names.push_back({std::move(name), std::string()});
  }
  for (MethodNames& each : names) each.mock = Take("on_" + each.method, used);
  return names;
}

std::string CommentLines(absl::string_view text, absl::string_view indent) {
  std::string out;
  absl::string_view body = absl::StripTrailingAsciiWhitespace(text);
  if (body.empty()) return out;
  for (absl::string_view line : absl::StrSplit(body, '\n')) {
    std::string clean;
    for (char c : line) clean += absl::ascii_iscntrl(static_cast<unsigned char>(c)) ? ' ' : c;
    absl::StripTrailingAsciiWhitespace(&clean);
    // A backslash at its end would make the next line of code a part of the comment.
    if (absl::EndsWith(clean, "\\")) clean += " .";
    absl::StrAppend(&out, indent, "//", clean, "\n");
  }
  return out;
}

}  // namespace verbena::codegen
