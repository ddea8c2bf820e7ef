// The plugin's manners towards protoc and people, and the generator towards requests that no protoc
// would send.
#include <google/protobuf/descriptor.pb.h>

#include <string>

#include "codegen/generate.h"
#include "codegen/names.h"
#include "codegen/parameters.h"
#include "tests/catch.h"
#include "tests/codegen/protoc.h"

namespace verbena::codegen {
namespace {
using Catch::ContainsSubstring;
using google::protobuf::FileDescriptorProto;
using google::protobuf::compiler::CodeGeneratorRequest;
using google::protobuf::compiler::CodeGeneratorResponse;

CodeGeneratorRequest RequestFor(const std::string& name) {
  CodeGeneratorRequest request;
  request.add_file_to_generate(name);
  FileDescriptorProto& file = *request.add_proto_file();
  file.set_name(name);
  file.set_syntax("proto3");
  return request;
}

ProcessResult Feed(const std::string& input) {
  const Workspace workspace;
  const std::string path = workspace.root() + "/request";
  WriteFile(path, input);
  return RunCommand(VERBENA_PLUGIN " < " + path);
}

TEST_CASE("a file without anything still has its three outputs", "[codegen]") {
  const auto response = Generate(RequestFor("dir/x.proto"));
  REQUIRE(response.ok());
  CHECK(response->error().empty());
  REQUIRE(response->file_size() == 3);
  CHECK(response->file(0).name() == "dir/x.verbena.h");
  CHECK(response->file(1).name() == "dir/x.verbena.cc");
  CHECK(response->file(2).name() == "dir/x.verbena_mock.h");
  CHECK((response->supported_features() & CodeGeneratorResponse::FEATURE_PROTO3_OPTIONAL) != 0);
}

TEST_CASE("requests that do not link are protoc's fault, not the schema's", "[codegen]") {
  // A file to generate that is not there.
  CodeGeneratorRequest missing = RequestFor("x.proto");
  missing.add_file_to_generate("y.proto");
  CHECK_THAT(std::string(Generate(missing).status().message()), ContainsSubstring("y.proto"));
  // An import that is not there.
  CodeGeneratorRequest import = RequestFor("x.proto");
  import.mutable_proto_file(0)->add_dependency("z.proto");
  CHECK_THAT(std::string(Generate(import).status().message()), ContainsSubstring("z.proto"));
  // A type that is not there.
  CodeGeneratorRequest type = RequestFor("x.proto");
  auto& method = *type.mutable_proto_file(0)->add_service()->add_method();
  type.mutable_proto_file(0)->mutable_service(0)->set_name("S");
  method.set_name("M");
  method.set_input_type(".Nobody");
  method.set_output_type(".Nobody");
  CHECK_THAT(std::string(Generate(type).status().message()), ContainsSubstring("Nobody"));
  // One file twice, with different contents.
  CodeGeneratorRequest twice = RequestFor("x.proto");
  twice.add_proto_file()->set_name("x.proto");
  twice.mutable_proto_file(1)->set_package("other");
  CHECK(Generate(twice).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("a file's name cannot break out of an #include", "[codegen]") {
  for (const char* name : {"a\"b.proto", "a\nb.proto", "a\\b.proto"}) {
    const auto response = Generate(RequestFor(name));
    REQUIRE(response.ok());
    CHECK_THAT(response->error(), ContainsSubstring("an #include cannot have"));
    CHECK(response->file_size() == 0);
  }
}

TEST_CASE("errors have a place even without source information", "[codegen]") {
  CodeGeneratorRequest request = RequestFor("x.proto");
  request.mutable_proto_file(0)->mutable_options()->set_cc_generic_services(true);
  const auto response = Generate(request);
  REQUIRE(response.ok());
  CHECK_THAT(response->error(), ContainsSubstring("x.proto:1:1: cc_generic_services"));
}

TEST_CASE("the plugin tells a broken request from a broken schema", "[codegen]") {
  // Not a request: a line on stderr and a status.
  const ProcessResult garbage = Feed("\xff\xff\xff");
  CHECK(garbage.status == 1);
  CHECK_THAT(garbage.output, ContainsSubstring("stdin is not a CodeGeneratorRequest"));
  // A request that does not link: the same.
  CodeGeneratorRequest broken = RequestFor("x.proto");
  broken.add_file_to_generate("y.proto");
  const ProcessResult unlinked = Feed(broken.SerializeAsString());
  CHECK(unlinked.status == 1);
  CHECK_THAT(unlinked.output, ContainsSubstring("y.proto"));
  // A schema error: a response that says so, and status 0.
  CodeGeneratorRequest schema = RequestFor("x.proto");
  schema.mutable_proto_file(0)->set_package("verbena");
  const ProcessResult refused = Feed(schema.SerializeAsString());
  CHECK(refused.status == 0);
  CodeGeneratorResponse response;
  REQUIRE(response.ParseFromString(refused.output));
  CHECK_THAT(response.error(), ContainsSubstring("own namespace"));
}

TEST_CASE("the plugin answers people", "[codegen]") {
  const ProcessResult version = RunCommand(VERBENA_PLUGIN " --version");
  CHECK(version.status == 0);
  CHECK(version.output == "protoc-gen-verbena " VERBENA_VERSION "\n");
  const ProcessResult help = RunCommand(VERBENA_PLUGIN " --help");
  CHECK(help.status == 0);
  CHECK_THAT(help.output, ContainsSubstring("protoc --cpp_out=DIR --verbena_out=DIR"));
  const ProcessResult unknown = RunCommand(VERBENA_PLUGIN " --frobnicate");
  CHECK(unknown.status == 2);
  CHECK_THAT(unknown.output, ContainsSubstring("unknown argument --frobnicate"));
}

TEST_CASE("parameters: none is known, nothing is nothing", "[codegen]") {
  CHECK(CheckParameters("").ok());
  CHECK(CheckParameters(",").ok());
  CHECK(CheckParameters("a").message() == "Unknown parameter: a");
  CHECK(CheckParameters(",b=c=d,e").message() == "Unknown parameter: b");
}

TEST_CASE("a comment cannot swallow the code below it", "[codegen]") {
  CHECK(CommentLines("", "") == "");
  CHECK(CommentLines(" one\n two\n", "  ") == "  // one\n  // two\n");
  CHECK(CommentLines(" path\\\n", "") == "// path\\ .\n");
  CHECK(CommentLines(" path\\ \t\r\n", "") == "// path\\ .\n");
  CHECK(CommentLines(" a\rint b;\n", "") == "// a int b;\n");
}

}  // namespace
}  // namespace verbena::codegen
