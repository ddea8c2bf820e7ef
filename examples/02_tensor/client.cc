// Sends a tensor and gets one back, in all the ways that there are.
//   client [--transport shm|verbs|tcp] ADDRESS
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "examples/common/command_line.h"
#include "scale.verbena.h"
#include "verbena/verbena.h"

namespace {

constexpr int64_t kRows = 1024, kColumns = 256;

absl::StatusOr<verbena::Parcel<scale::ScaleRequest>> MakeRequest(float factor) {
  std::vector<float> values(kRows * kColumns);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000);
  verbena::Parcel<scale::ScaleRequest> request;
  request->set_factor(factor);
  VERBENA_ASSIGN_OR_RETURN(verbena::Tensor input,
                           verbena::Tensor::Copy<float>(values, verbena::Shape(kRows, kColumns)));
  request.Attach(*request->mutable_input(), std::move(input));
  return request;
}

absl::Status Expect(const char* what, const verbena::Tensor& tensor, size_t index, float expected) {
  VERBENA_ASSIGN_OR_RETURN(absl::Span<const float> values, tensor.Values<float>());
  if (index >= values.size()) return absl::DataLossError("the tensor is too small");
  std::printf("%-34s %7zu bytes, element %zu is %g\n", what, tensor.bytes(), index, values[index]);
  return values[index] == expected ? absl::OkStatus() : absl::DataLossError("a wrong element");
}

// One reply, of which any part may be pulled, and any number of times, until it dies.
absl::Status FetchParts(const scale::Scaler::Stub& stub) {
  VERBENA_ASSIGN_OR_RETURN(auto request, MakeRequest(2));
  auto call = stub.Scale(request);
  VERBENA_ASSIGN_OR_RETURN(verbena::Parcel<scale::ScaleReply> reply, call.Get());
  std::printf("a reply of %d dimensions came over %s, its elements did not\n",
              reply->output().shape_size(), std::string(call.report().transport).c_str());

  VERBENA_ASSIGN_OR_RETURN(verbena::Tensor whole, reply.Fetch(reply->output()).Get());
  VERBENA_RETURN_IF_ERROR(Expect("fetched whole:", whole, 7, 14));

  VERBENA_ASSIGN_OR_RETURN(verbena::Tensor rows,
                           reply.Fetch(reply->output(), verbena::TensorSlice(2, 4)).Get());
  VERBENA_RETURN_IF_ERROR(Expect("fetched rows 2 and 3:", rows, 0, 2 * 512));

  VERBENA_ASSIGN_OR_RETURN(
      verbena::Tensor mine,
      verbena::Tensor::Empty(verbena::kFloat32, verbena::Shape(kRows, kColumns)));
  VERBENA_RETURN_IF_ERROR(
      reply.Fetch(reply->output(), verbena::Placement::Into(mine)).Get().status());
  return Expect("fetched into memory of my own:", mine, 9, 18);
}

// The destination goes out with the request: the elements are here when the call completes.
absl::Status LendDestination(const scale::Scaler::Stub& stub) {
  VERBENA_ASSIGN_OR_RETURN(
      verbena::Tensor mine,
      verbena::Tensor::Empty(verbena::kFloat32, verbena::Shape(kRows, kColumns)));
  auto options = verbena::CallOptions().set_reply_placement(verbena::Placement::Into(mine));
  VERBENA_ASSIGN_OR_RETURN(auto request, MakeRequest(3));
  VERBENA_RETURN_IF_ERROR(stub.Scale(request, options).Get().status());
  return Expect("placed before the call completed:", mine, 5, 15);
}

// Nothing is pulled; the server's memory is free again when the reply dies.
absl::Status FetchNothing(const scale::Scaler::Stub& stub) {
  VERBENA_ASSIGN_OR_RETURN(auto request, MakeRequest(4));
  VERBENA_ASSIGN_OR_RETURN(verbena::Parcel<scale::ScaleReply> reply, stub.Scale(request).Get());
  std::printf("left where it is:                  %lld rows\n",
              static_cast<long long>(reply->output().shape(0)));
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  const auto line = verbena::examples::ReadCommandLine(
      argc, argv, 1, "client [--transport shm|verbs|tcp] ADDRESS");
  if (!line) return 2;
  scale::Scaler::Stub stub(verbena::Channel::Create(line->arguments[0], line->channel));
  absl::Status status = FetchParts(stub);
  if (status.ok()) status = LendDestination(stub);
  if (status.ok()) status = FetchNothing(stub);
  if (!status.ok()) std::fprintf(stderr, "client: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
