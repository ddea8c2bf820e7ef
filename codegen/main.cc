// protoc-gen-verbena: protoc runs it, with a CodeGeneratorRequest on stdin, and reads a
// CodeGeneratorResponse from stdout.
#include <unistd.h>

#include <cstdio>
#include <string>

#include "absl/strings/string_view.h"
#include "codegen/generate.h"

namespace {
using google::protobuf::compiler::CodeGeneratorRequest;
using google::protobuf::compiler::CodeGeneratorResponse;

constexpr char kHelp[] =
    "protoc-gen-verbena writes Verbena's C++ stubs, services, mocks and tensor visitors.\n"
    "protoc runs it:\n"
    "  protoc --cpp_out=DIR --verbena_out=DIR FILE.proto\n"
    "with this program on PATH, or --plugin=protoc-gen-verbena=PATH.\n"
    "Each FILE.proto gives FILE.verbena.h, FILE.verbena.cc and FILE.verbena_mock.h.\n"
    "It has no parameters.  --help and --version print and exit.\n";

int RunAsPlugin() {
  CodeGeneratorRequest request;
  if (!request.ParseFromFileDescriptor(STDIN_FILENO)) {
    std::fputs(
        "protoc-gen-verbena: stdin is not a CodeGeneratorRequest; protoc runs this program\n",
        stderr);
    return 1;
  }
  const absl::StatusOr<CodeGeneratorResponse> response = verbena::codegen::Generate(request);
  if (!response.ok()) {
    std::fprintf(stderr, "protoc-gen-verbena: %s\n",
                 std::string(response.status().message()).c_str());
    return 1;
  }
  if (!response->SerializeToFileDescriptor(STDOUT_FILENO)) {
    std::perror("protoc-gen-verbena: cannot write the response");
    return 1;
  }
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  if (argc == 1 && !isatty(STDIN_FILENO)) return RunAsPlugin();
  const absl::string_view argument = argc == 2 ? argv[1] : "";
  if (argument == "--version") {
    std::puts("protoc-gen-verbena " VERBENA_VERSION);
    return 0;
  }
  if (argument == "--help") {
    std::fputs(kHelp, stdout);
    return 0;
  }
  if (argc > 1) std::fprintf(stderr, "protoc-gen-verbena: unknown argument %s\n", argv[1]);
  std::fputs(kHelp, stderr);
  return 2;
}
