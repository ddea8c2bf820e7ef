#include "codegen/generate.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/stubs/common.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "codegen/checks.h"
#include "codegen/model.h"
#include "codegen/parameters.h"
#include "codegen/printers.h"

namespace verbena::codegen {
namespace {
using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorProto;
using google::protobuf::Message;
using google::protobuf::compiler::CodeGeneratorRequest;
using google::protobuf::compiler::CodeGeneratorResponse;

// Keeps what the pool says instead of logging it.
class Errors final : public DescriptorPool::ErrorCollector {
 public:
#if GOOGLE_PROTOBUF_VERSION >= 4022000
  void RecordError(absl::string_view file, absl::string_view element, const Message*, ErrorLocation,
                   absl::string_view text) override {
    Append(file, element, text);
  }
#else
  void AddError(const std::string& file, const std::string& element, const Message*, ErrorLocation,
                const std::string& text) override {
    Append(file, element, text);
  }
#endif

  const std::string& text() const { return text_; }

 private:
  void Append(absl::string_view file, absl::string_view element, absl::string_view text) {
    absl::StrAppend(&text_, text_.empty() ? "" : "\n", file, ": ", element, ": ", text);
  }

  std::string text_;
};

void SetFeatures(CodeGeneratorResponse& response) {
  uint64_t features = CodeGeneratorResponse::FEATURE_PROTO3_OPTIONAL;
#if GOOGLE_PROTOBUF_VERSION >= 4025000
  features |= CodeGeneratorResponse::FEATURE_SUPPORTS_EDITIONS;
  response.set_minimum_edition(google::protobuf::EDITION_PROTO2);
  response.set_maximum_edition(google::protobuf::EDITION_2023);
#endif
  response.set_supported_features(features);
}

absl::Status BuildPool(const CodeGeneratorRequest& request, DescriptorPool& pool) {
  for (const FileDescriptorProto& file : request.proto_file()) {
    Errors errors;
    if (pool.BuildFileCollectingErrors(file, &errors) == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("the request does not link: ", errors.text()));
    }
  }
  return absl::OkStatus();
}

void AddFile(std::string name, std::string content, CodeGeneratorResponse& response) {
  CodeGeneratorResponse::File& file = *response.add_file();
  file.set_name(std::move(name));
  file.set_content(std::move(content));
}
}  // namespace

absl::StatusOr<CodeGeneratorResponse> Generate(const CodeGeneratorRequest& request) {
  CodeGeneratorResponse response;
  SetFeatures(response);
  const absl::Status parameters = CheckParameters(request.parameter());
  if (!parameters.ok()) {
    response.set_error(std::string(parameters.message()));
    return response;
  }
  DescriptorPool pool;
  if (absl::Status built = BuildPool(request, pool); !built.ok()) return built;
  std::vector<std::string> errors;
  for (const std::string& name : request.file_to_generate()) {
    const FileDescriptor* file = pool.FindFileByName(name);
    if (file == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("the request has no descriptor of ", name));
    }
    const std::vector<std::string> found = CheckFile(*file);
    errors.insert(errors.end(), found.begin(), found.end());
    if (!errors.empty()) continue;
    const File model = BuildFileModel(*file);
    AddFile(model.base + ".verbena.h", PrintHeader(model), response);
    AddFile(model.base + ".verbena.cc", PrintSource(model), response);
    AddFile(model.base + ".verbena_mock.h", PrintMock(model), response);
  }
  if (!errors.empty()) {
    response.clear_file();
    response.set_error(absl::StrJoin(errors, "\n"));
  }
  return response;
}

}  // namespace verbena::codegen
