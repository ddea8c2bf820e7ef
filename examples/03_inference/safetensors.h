#pragma once
// Opens `.safetensors` files: https://github.com/huggingface/safetensors. The file is 8 bytes of
// header length, a JSON header that gives each tensor's dtype, shape and byte range, and the data;
// all little-endian. Nothing in it is trusted: the header is validated completely before a tensor
// is handed out, and the data are mapped, not copied.
//
//   absl::StatusOr<safetensors::File> file = safetensors::File::Open("model.safetensors");
//   if (!file.ok()) return file.status();
//   for (const safetensors::TensorInfo& tensor : file->tensors()) Use(tensor, file->data(tensor));
//
// Remember: a mapping shows the file as it is now. Replacing the file by rename(2), as writers
// should, leaves an open File on the old contents. Overwriting it in place changes the bytes under
// the reader. Truncating it makes the kernel raise SIGBUS in whoever reads past the new end, which
// no check before the read can exclude; see CheckUnchanged() and truncation.h.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace verbena::safetensors {

// The format's own limit. Higher lets a hostile file make the reader allocate that much.
inline constexpr uint64_t kHeaderBytesMax = 100'000'000;
// "{}".
inline constexpr uint64_t kHeaderBytesMin = 2;
inline constexpr uint64_t kLengthBytes = 8;
// The largest published models have tens of thousands. Too low refuses a real file; each costs
// about 150 bytes.
inline constexpr size_t kTensorCountMax = size_t{1} << 18;
inline constexpr size_t kNameBytesMax = 4096;
// What verbena::Shape holds.
inline constexpr size_t kRankMax = 8;

struct TensorInfo {
  std::string name;
  // DLPack's triple: code << 24 | bits << 16 | lanes, as in verbena.v1.Tensor.
  uint32_t dtype = 0;
  // Elements per dimension, row-major; empty for a scalar.
  std::vector<int64_t> shape;
  // From the first byte of data (not of the file), and how many.
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

struct Header {
  // By ascending offset. They cover the data exactly: no hole, no overlap.
  std::vector<TensorInfo> tensors;
  absl::btree_map<std::string, std::string> metadata;
};

// DLPack's triple for one of the format's names ("F32", "BF16", "F8_E4M3", ...), or 0 when there is
// none.
uint32_t DTypeOf(absl::string_view name);

// Parses and validates a header, without its 8 bytes of length, that is followed by `data_bytes`
// bytes of data. Any thread. Cost: time and memory in proportion to the header. Errors:
// INVALID_ARGUMENT naming the tensor, the value and the limit.
absl::StatusOr<Header> ParseHeader(absl::string_view header, uint64_t data_bytes);

// A mapped file. Movable; any thread, not concurrently on one object, but data() and tensors() may
// be called by many threads once it is open. Everything it gives out is valid until it is
// destroyed.
class File {
 public:
  // Errors: NOT_FOUND and PERMISSION_DENIED from the file system, INVALID_ARGUMENT for a file that
  // is not what its header says (names file, tensor, value and limit), RESOURCE_EXHAUSTED when it
  // cannot be mapped.
  static absl::StatusOr<File> Open(const std::string& path);

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  const std::string& path() const { return path_; }
  absl::Span<const TensorInfo> tensors() const { return header_.tensors; }
  const absl::btree_map<std::string, std::string>& metadata() const { return header_.metadata; }
  // Null when the file has no tensor of this name. Cost: linear in the number of tensors.
  const TensorInfo* Find(absl::string_view name) const;

  // The bytes of one of this file's tensors, in the mapping. The format does not promise that they
  // are aligned to their element: copy them, or check, before reading them as anything but bytes.
  absl::Span<const std::byte> data(const TensorInfo& tensor) const;
  // The bytes of all of them.
  absl::Span<const std::byte> data() const {
    return absl::MakeConstSpan(mapping_ + data_offset_, file_bytes_ - data_offset_);
  }

  // Whether the file still has the size and modification time that it was opened with: call it
  // before a long use. FAILED_PRECONDITION, naming what changed, means that data() may no longer be
  // what was validated, or raise SIGBUS. One system call. It narrows the race with a truncating
  // writer and cannot close it.
  absl::Status CheckUnchanged() const;

 private:
  File() = default;
  void Close();

  std::string path_;
  Header header_;
  int descriptor_ = -1;
  const std::byte* mapping_ = nullptr;
  uint64_t file_bytes_ = 0;
  uint64_t data_offset_ = 0;
  int64_t modified_ns_ = 0;
};

}  // namespace verbena::safetensors
