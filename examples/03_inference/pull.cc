#include "examples/03_inference/pull.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "examples/03_inference/digest.h"
#include "examples/03_inference/progress.h"

namespace verbena::examples {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(30);

std::string NameOf(const inference::TensorEntry& entry) {
  return absl::StrCat("tensor '", absl::CHexEscape(entry.name().substr(0, 64)), "'");
}

// Sums the list's bytes, which are the server's word until each is checked against dtype and shape.
absl::StatusOr<uint64_t> TotalBytes(const inference::ListReply& list) {
  uint64_t total = 0;
  for (const inference::TensorEntry& entry : list.tensors()) {
    uint64_t bytes = static_cast<uint64_t>(DType::FromWord(entry.spec().dtype()).bits()) / 8;
    for (int64_t dimension : entry.spec().shape()) {
      if (dimension < 0 ||
          __builtin_mul_overflow(bytes, static_cast<uint64_t>(dimension), &bytes)) {
        return absl::InvalidArgumentError(
            absl::StrCat(NameOf(entry), ": dimension ", dimension, " is negative or too large"));
      }
    }
    if (bytes != entry.bytes()) {
      return absl::InvalidArgumentError(absl::StrCat(NameOf(entry), ": ", entry.bytes(),
                                                     " bytes, its dtype and shape need ", bytes));
    }
    if (bytes > kPulledBytesMax - total) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the server's tensors are above ", kPulledBytesMax, " bytes"));
    }
    total += bytes;
  }
  return total;
}

// What was listed is what came.
absl::Status CheckReply(const inference::TensorEntry& entry, const v1::Tensor& tensor) {
  const bool same = tensor.dtype() == entry.spec().dtype() &&
                    std::equal(tensor.shape().begin(), tensor.shape().end(),
                               entry.spec().shape().begin(), entry.spec().shape().end());
  if (same && tensor.shape_size() <= static_cast<int>(Shape::kRankMax)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(NameOf(entry), " is not of the dtype and shape that were listed"));
}

// READs rows [begin, end) to where they belong in `whole`.
absl::Status FetchRows(const Parcel<inference::PullReply>& reply, const Tensor& whole,
                       int64_t begin, int64_t end) {
  const uint64_t row_bytes = whole.bytes() / static_cast<uint64_t>(whole.shape()[0]);
  Shape part = whole.shape();
  part[0] = end - begin;
  VERBENA_ASSIGN_OR_RETURN(Buffer memory,
                           whole.buffer().Slice(static_cast<uint64_t>(begin) * row_bytes,
                                                static_cast<uint64_t>(end - begin) * row_bytes));
  VERBENA_ASSIGN_OR_RETURN(Tensor destination,
                           Tensor::Wrap(std::move(memory), whole.dtype(), part));
  return reply
      .Fetch(reply->tensor(), TensorSlice(begin, end), Placement::Into(std::move(destination)))
      .Get()
      .status();
}

absl::Status FetchInPieces(const Parcel<inference::PullReply>& reply, const Tensor& whole,
                           const std::string& name, Progress& progress) {
  const int64_t rows = whole.shape().rank() == 0 ? 1 : whole.shape()[0];
  if (whole.bytes() <= kPieceBytes || rows == 1) {
    absl::Status status = reply.Fetch(reply->tensor(), Placement::Into(whole)).Get().status();
    progress.Advance(whole.bytes(), name);
    return status;
  }
  const uint64_t row_bytes = whole.bytes() / static_cast<uint64_t>(rows);
  const auto step = static_cast<int64_t>(std::max<uint64_t>(1, kPieceBytes / row_bytes));
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t end = std::min(begin + step, rows);
    VERBENA_RETURN_IF_ERROR(FetchRows(reply, whole, begin, end));
    progress.Advance(static_cast<uint64_t>(end - begin) * row_bytes, name);
  }
  return absl::OkStatus();
}

// The time since `begin`, which moves to now.
absl::Duration Lap(absl::Time& begin) {
  const absl::Time end = absl::Now();
  return end - std::exchange(begin, end);
}

// By the CPU, so of what a GPU has by way of a copy.
absl::StatusOr<std::string> DigestOf(const Tensor& tensor, const Gpu* gpu) {
  if (gpu == nullptr) return Sha256Hex(absl::MakeConstSpan(tensor.data(), tensor.bytes()));
  std::vector<std::byte> copy(tensor.bytes());
  VERBENA_RETURN_IF_ERROR(gpu->CopyToHost(copy.data(), tensor.data(), copy.size()));
  return Sha256Hex(copy);
}

absl::StatusOr<Tensor> PullOne(const inference::Weights::Stub& stub, const Gpu* gpu,
                               const inference::TensorEntry& entry, Progress& progress,
                               Pulled& pulled) {
  // The memory first: it may take seconds, and the server's lease is not for ever.
  VERBENA_ASSIGN_OR_RETURN(Shape shape, Shape::From(entry.spec().shape()));
  absl::Time begin = absl::Now();
  VERBENA_ASSIGN_OR_RETURN(Tensor whole,
                           Tensor::Empty(DType::FromWord(entry.spec().dtype()), shape,
                                         gpu == nullptr ? Device::Host() : gpu->device()));
  pulled.memory_time += Lap(begin);
  inference::PullRequest request;
  request.set_name(entry.name());
  VERBENA_ASSIGN_OR_RETURN(Parcel<inference::PullReply> reply,
                           stub.Pull(request, CallOptions().set_timeout(kCallTimeout)).Get());
  VERBENA_RETURN_IF_ERROR(CheckReply(entry, reply->tensor()));
  begin = absl::Now();
  VERBENA_RETURN_IF_ERROR(FetchInPieces(reply, whole, entry.name(), progress));
  pulled.read_time += Lap(begin);
  // The server's memory is given back here, before the digest takes its time.
  reply.Release();
  VERBENA_ASSIGN_OR_RETURN(const std::string digest, DigestOf(whole, gpu));
  pulled.digest_time += Lap(begin);
  if (digest != entry.sha256()) {
    return absl::DataLossError(absl::StrCat(NameOf(entry), " arrived with SHA-256 ", digest,
                                            ", the server has ",
                                            absl::CHexEscape(entry.sha256().substr(0, 64))));
  }
  return whole;
}

}  // namespace

absl::StatusOr<Pulled> PullAll(const inference::Weights::Stub& stub, const Gpu* gpu) {
  auto call = stub.List(inference::ListRequest(), CallOptions().set_timeout(kCallTimeout));
  VERBENA_ASSIGN_OR_RETURN(inference::ListReply list, call.Get());
  Pulled pulled;
  pulled.file = list.file();
  pulled.transport = std::string(call.report().transport);
  VERBENA_ASSIGN_OR_RETURN(pulled.bytes, TotalBytes(list));
  Progress progress("pulling", pulled.bytes);
  for (const inference::TensorEntry& entry : list.tensors()) {
    VERBENA_ASSIGN_OR_RETURN(Tensor tensor, PullOne(stub, gpu, entry, progress, pulled));
    pulled.tensors.push_back({entry.name(), std::move(tensor)});
  }
  progress.Finish();
  return pulled;
}

}  // namespace verbena::examples
