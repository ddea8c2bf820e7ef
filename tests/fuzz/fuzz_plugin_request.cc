// A CodeGeneratorRequest from anywhere: the generator refuses it or writes three files for each
// that was asked for.
#include <google/protobuf/stubs/logging.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "codegen/generate.h"

namespace {

using google::protobuf::compiler::CodeGeneratorRequest;
using google::protobuf::compiler::CodeGeneratorResponse;

void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static google::protobuf::LogSilencer quiet;
  CodeGeneratorRequest request;
  if (!request.ParseFromArray(data, static_cast<int>(bytes))) return 0;
  const absl::StatusOr<CodeGeneratorResponse> response = verbena::codegen::Generate(request);
  if (!response.ok()) {
    Require(response.status().code() == absl::StatusCode::kInvalidArgument);
    return 0;
  }
  if (!response->error().empty()) {
    Require(response->file_size() == 0);
    return 0;
  }
  Require(response->file_size() == 3 * request.file_to_generate_size());
  for (const CodeGeneratorResponse::File& file : response->file()) {
    Require(!file.name().empty() && !file.content().empty());
  }
  return 0;
}
