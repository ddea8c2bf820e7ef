// What is refused, and how it is said: at its place in the .proto, by protoc's own mouth.
#include <string>

#include "tests/catch.h"
#include "tests/codegen/protoc.h"

namespace verbena::codegen {
namespace {
using Catch::ContainsSubstring;

// protoc's output for one file called x.proto, which must not generate anything.
std::string ErrorOf(const std::string& text) {
  Workspace workspace;
  workspace.Add("x.proto", text);
  const ProcessResult protoc = workspace.Protoc({"x.proto"});
  CHECK(protoc.status == 1);
  CHECK(ReadFile(workspace.out() + "/x.verbena.h").empty());
  return protoc.output;
}

TEST_CASE("generic services are refused where they are asked for", "[codegen][errors]") {
  const std::string error = ErrorOf(
      "syntax = \"proto3\";\n"
      "package p;\n"
      "  option cc_generic_services = true;\n");
  CHECK_THAT(error, ContainsSubstring("x.proto:3:3: cc_generic_services = true"));
}

TEST_CASE("an extension that carries tensors is refused", "[codegen][errors]") {
  const std::string error = ErrorOf(
      "syntax = \"proto2\";\n"
      "package p;\n"
      "import \"verbena/v1/tensor.proto\";\n"
      "message Open { extensions 100 to 200; }\n"
      "message Holder { repeated Loop loop = 1; }\n"
      "message Loop { optional Loop next = 1; optional verbena.v1.Buffer data = 2; }\n"
      "extend Open { optional verbena.v1.Tensor direct = 100; }\n"
      "message Scope {\n"
      "  extend Open { repeated Holder deep = 101; }\n"
      "  extend Open { optional Scope none = 102; }\n"
      "}\n");
  // Each at its own place, at any depth.
  CHECK_THAT(error,
             ContainsSubstring("x.proto:7:15: extension p.direct carries tensors, and p.Open"));
  CHECK_THAT(error, ContainsSubstring("x.proto:9:17: extension p.Scope.deep carries tensors"));
  // One that carries nothing is fine.
  CHECK_THAT(error, !ContainsSubstring("p.Scope.none"));
}

TEST_CASE("a bare tensor is no request and no reply", "[codegen][errors]") {
  const std::string error = ErrorOf(
      "syntax = \"proto3\";\n"
      "import \"verbena/v1/tensor.proto\";\n"
      "message M {}\n"
      "service S {\n"
      "  rpc In(verbena.v1.Tensor) returns (M);\n"
      "  rpc Out(M) returns (stream verbena.v1.Buffer);\n"
      "  rpc Fine(M) returns (verbena.v1.TensorSpec);\n"
      "}\n");
  CHECK_THAT(error,
             ContainsSubstring("x.proto:5:3: method In takes or returns a bare verbena.v1.Tensor"));
  CHECK_THAT(error, ContainsSubstring(
                        "x.proto:6:3: method Out takes or returns a bare verbena.v1.Buffer"));
  CHECK_THAT(error, !ContainsSubstring("Fine"));
}

TEST_CASE("names that become one in C++ are refused", "[codegen][errors]") {
  // Nested messages are flattened by protoc, and so are their enums.
  CHECK_THAT(
      ErrorOf("syntax = \"proto3\";\n"
              "package p;\n"
              "message Outer { message Inner {} }\n"
              "service Outer_Inner { rpc R(Outer) returns (Outer); }\n"),
      ContainsSubstring("x.proto:4:1: service p.Outer_Inner and message p.Outer.Inner both become "
                        "the C++ name Outer_Inner"));
  CHECK_THAT(ErrorOf("syntax = \"proto3\";\n"
                     "message Outer { enum Kind { ZERO = 0; } }\n"
                     "service Outer_Kind_ZERO {}\n"),
             ContainsSubstring("x.proto:3:1: service Outer_Kind_ZERO and enum value Outer.ZERO"));
  // A keyword gets an underscore, which another service may have already.
  CHECK_THAT(
      ErrorOf("syntax = \"proto3\";\n"
              "service class_ {}\n"
              "service class {}\n"),
      ContainsSubstring("x.proto:3:1: service class and service class_ both become the C++ name "
                        "class_"));
}

TEST_CASE("the library's own namespace is refused as a package", "[codegen][errors]") {
  CHECK_THAT(ErrorOf("syntax = \"proto3\";\npackage verbena;\n"),
             ContainsSubstring("x.proto:2:1: package verbena is the library's own namespace"));
  CHECK_THAT(
      ErrorOf("syntax = \"proto3\";\npackage verbena.internal;\n"),
      ContainsSubstring("x.proto:2:1: package verbena.internal is the library's own namespace"));
}

TEST_CASE("all errors of all files are reported at once", "[codegen][errors]") {
  Workspace workspace;
  workspace.Add("good.proto", "syntax = \"proto3\";\n");
  workspace.Add("a.proto", "syntax = \"proto3\";\noption cc_generic_services = true;\n");
  workspace.Add("b.proto", "syntax = \"proto3\";\npackage verbena;\n");
  const ProcessResult protoc = workspace.Protoc({"good.proto", "a.proto", "b.proto"});
  CHECK(protoc.status == 1);
  CHECK_THAT(protoc.output, ContainsSubstring("a.proto:2:1: "));
  CHECK_THAT(protoc.output, ContainsSubstring("b.proto:2:1: "));
  CHECK(ReadFile(workspace.out() + "/good.verbena.h").empty());
}

TEST_CASE("an unknown parameter is refused by name", "[codegen][errors]") {
  Workspace workspace;
  workspace.Add("x.proto", "syntax = \"proto3\";\n");
  const ProcessResult protoc = workspace.Protoc({"x.proto"}, {}, "mock=false");
  CHECK(protoc.status == 1);
  CHECK_THAT(protoc.output, ContainsSubstring("Unknown parameter: mock"));
}

}  // namespace
}  // namespace verbena::codegen
