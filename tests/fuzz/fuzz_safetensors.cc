// The header of a .safetensors file. Input: 8 bytes, little-endian, of how many bytes of data
// follow the header; then the header. What parses must satisfy everything that a reader of the
// tensors relies on.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "examples/03_inference/safetensors.h"

namespace {

void Require(bool holds) {
  if (!holds) std::abort();
}

void CheckTensor(const verbena::safetensors::TensorInfo& tensor, uint64_t begin,
                 uint64_t data_bytes) {
  Require(tensor.offset == begin);
  Require(tensor.bytes <= data_bytes - begin);
  Require(tensor.shape.size() <= verbena::safetensors::kRankMax);
  Require((tensor.dtype & 0xffff) == 1);
  // In floating point, so that it is not the code under test again.
  long double bytes = static_cast<long double>(tensor.dtype >> 16 & 0xff) / 8;
  for (int64_t dimension : tensor.shape) {
    Require(dimension >= 0);
    bytes *= static_cast<long double>(dimension);
  }
  Require(bytes == static_cast<long double>(tensor.bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < verbena::safetensors::kLengthBytes) return 0;
  uint64_t data_bytes = 0;
  for (size_t i = 0; i < verbena::safetensors::kLengthBytes; ++i)
    data_bytes |= uint64_t{data[i]} << (8 * i);
  const absl::string_view header(
      reinterpret_cast<const char*>(data) + verbena::safetensors::kLengthBytes,
      bytes - verbena::safetensors::kLengthBytes);
  absl::StatusOr<verbena::safetensors::Header> parsed =
      verbena::safetensors::ParseHeader(header, data_bytes);
  if (!parsed.ok()) {
    Require(parsed.status().code() == absl::StatusCode::kInvalidArgument &&
            !parsed.status().message().empty());
    return 0;
  }
  uint64_t covered = 0;
  for (const verbena::safetensors::TensorInfo& tensor : parsed->tensors) {
    CheckTensor(tensor, covered, data_bytes);
    covered += tensor.bytes;
  }
  Require(covered == data_bytes);
  return 0;
}
