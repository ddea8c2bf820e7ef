// A server that pulls a tensor, multiplies it, and offers the result to be pulled.  server ADDRESS
#include <cstdint>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "examples/common/termination.h"
#include "scale.verbena.h"
#include "verbena/verbena.h"

namespace {

// What one request may make this server allocate, and how long it may hold the reactor: multiplying
// this much takes about 10 ms. A method that computes longer is marked blocking in its .proto.
constexpr uint64_t kInputBytesMax = uint64_t{16} << 20;

// The descriptor is the client's word, and so is checked before anything is allocated for it.
absl::Status CheckInput(const verbena::v1::Tensor& input) {
  if (input.dtype() != verbena::kFloat32.word()) {
    return absl::InvalidArgumentError(absl::StrCat("dtype ", input.dtype(), " is not float32"));
  }
  uint64_t bytes = sizeof(float);
  for (int64_t dimension : input.shape()) {
    if (dimension < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(dimension), &bytes) ||
        bytes > kInputBytesMax) {
      return absl::ResourceExhaustedError(
          absl::StrCat("input is above ", kInputBytesMax, " bytes"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<verbena::Tensor> Multiply(const verbena::Tensor& input, float factor) {
  VERBENA_ASSIGN_OR_RETURN(absl::Span<const float> from, input.Values<float>());
  VERBENA_ASSIGN_OR_RETURN(verbena::Tensor output,
                           verbena::Tensor::Empty(input.dtype(), input.shape()));
  float* to = reinterpret_cast<float*>(output.mutable_data());
  for (size_t i = 0; i < from.size(); ++i) to[i] = from[i] * factor;
  return output;
}

class ScalerImpl final : public scale::Scaler::Service {
  verbena::Task<absl::Status> Scale(verbena::ServerContext&,
                                    const verbena::Parcel<scale::ScaleRequest>& request,
                                    verbena::Parcel<scale::ScaleReply>& reply) override {
    VERBENA_CO_RETURN_IF_ERROR(CheckInput(request->input()));
    // So far only the descriptor is here. This pulls the elements out of the client's memory.
    VERBENA_CO_ASSIGN_OR_RETURN(verbena::Tensor input, co_await request.Fetch(request->input()));
    VERBENA_CO_ASSIGN_OR_RETURN(verbena::Tensor output, Multiply(input, request->factor()));
    // Not sent: leased to the client, which pulls what it wants of it.
    reply.Attach(*reply->mutable_output(), output);
    co_return absl::OkStatus();
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: server ADDRESS\n");
    return 2;
  }
  ScalerImpl scaler;
  auto server =
      verbena::Server::Start(verbena::ServerOptions().set_listen(argv[1]).add_service(scaler));
  if (!server.ok()) {
    std::fprintf(stderr, "server: %s\n", server.status().ToString().c_str());
    return 1;
  }
  std::printf("serving scale.Scaler on %s\n", argv[1]);
  std::fflush(stdout);
  verbena::examples::WaitForTermination();
}
