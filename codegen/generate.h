#pragma once
// The generator as a function: what protoc sends in, what it gets back. No input or output of its
// own.
//
//   absl::StatusOr<CodeGeneratorResponse> response = Generate(request);
#include <google/protobuf/compiler/plugin.pb.h>

#include "absl/status/statusor.h"

namespace verbena::codegen {

// Three files for each file to generate, x.verbena.h, x.verbena.cc and x.verbena_mock.h, even when
// they have nothing to say. What is wrong with a schema or a parameter stands in the response's
// `error`, a line "file:line:column: text" for each. INVALID_ARGUMENT: the request itself is broken
// (files that do not link, or are not there), so protoc is at fault. Any thread.
absl::StatusOr<google::protobuf::compiler::CodeGeneratorResponse> Generate(
    const google::protobuf::compiler::CodeGeneratorRequest& request);

}  // namespace verbena::codegen
