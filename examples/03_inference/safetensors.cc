#include "examples/03_inference/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "examples/03_inference/truncation.h"

namespace verbena::safetensors {
namespace {

int64_t ModifiedNs(const struct stat& s) {
  return int64_t{s.st_mtim.tv_sec} * 1'000'000'000 + s.st_mtim.tv_nsec;
}

// Reads by system call and not through the mapping, so that a file that shrinks meanwhile is an
// error and no signal.
absl::Status ReadExactly(int descriptor, uint64_t offset, char* to, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = pread(descriptor, to, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::ErrnoToStatus(errno, "cannot read the header");
    if (n == 0)
      return absl::InvalidArgumentError(absl::StrCat("the file now ends at byte ", offset));
    to += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

// What begins with such a length was mostly meant to be something else.
constexpr char kIsItOne[] = "; is it a .safetensors file?";

// The header's length, checked against the limit and the file.
absl::StatusOr<uint64_t> ReadLength(int descriptor, uint64_t file_bytes) {
  if (file_bytes < kLengthBytes + kHeaderBytesMin) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the file has ", file_bytes, " bytes, the smallest is ", kLengthBytes + kHeaderBytesMin));
  }
  unsigned char raw[kLengthBytes];
  absl::Status read = ReadExactly(descriptor, 0, reinterpret_cast<char*>(raw), sizeof(raw));
  if (!read.ok()) return read;
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= uint64_t{raw[i]} << (8 * i);
  if (length < kHeaderBytesMin || length > kHeaderBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the header's length is ", length,
                                                   ", allowed are ", kHeaderBytesMin, " to ",
                                                   kHeaderBytesMax, kIsItOne));
  }
  if (length > file_bytes - kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the header's length is ", length, ", but only ",
                                                   file_bytes - kLengthBytes, " bytes follow it",
                                                   kIsItOne));
  }
  return length;
}

absl::StatusOr<Header> ReadHeader(int descriptor, uint64_t file_bytes, uint64_t& data_offset) {
  absl::StatusOr<uint64_t> length = ReadLength(descriptor, file_bytes);
  if (!length.ok()) return length.status();
  std::string text(*length, '\0');
  if (absl::Status s = ReadExactly(descriptor, kLengthBytes, text.data(), text.size()); !s.ok())
    return s;
  data_offset = kLengthBytes + *length;
  return ParseHeader(text, file_bytes - data_offset);
}

absl::Status InFile(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace

absl::StatusOr<File> File::Open(const std::string& path) {
  File file;
  file.path_ = path;
  // O_NONBLOCK: a named pipe must not hold us here; it means nothing for a regular file.
  file.descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (file.descriptor_ < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot open"));
  struct stat s;
  if (fstat(file.descriptor_, &s) != 0)
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot stat"));
  if (!S_ISREG(s.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  file.file_bytes_ = static_cast<uint64_t>(s.st_size);
  file.modified_ns_ = ModifiedNs(s);

  absl::StatusOr<Header> header = ReadHeader(file.descriptor_, file.file_bytes_, file.data_offset_);
  if (!header.ok()) return InFile(path, header.status());
  file.header_ = *std::move(header);

  void* mapping = mmap(nullptr, file.file_bytes_, PROT_READ, MAP_SHARED, file.descriptor_, 0);
  if (mapping == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, ": cannot map ", file.file_bytes_, " bytes: errno ", errno));
  }
  file.mapping_ = static_cast<const std::byte*>(mapping);
  truncation::Register(file.mapping_, file.file_bytes_, path);
  if (absl::Status status = file.CheckUnchanged(); !status.ok()) return status;
  return file;
}

const TensorInfo* File::Find(absl::string_view name) const {
  for (const TensorInfo& tensor : header_.tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

absl::Span<const std::byte> File::data(const TensorInfo& tensor) const {
  return data().subspan(tensor.offset, tensor.bytes);
}

absl::Status File::CheckUnchanged() const {
  struct stat s;
  if (fstat(descriptor_, &s) != 0)
    return absl::ErrnoToStatus(errno, absl::StrCat(path_, ": cannot stat"));
  if (static_cast<uint64_t>(s.st_size) != file_bytes_) {
    return absl::FailedPreconditionError(absl::StrCat(
        path_, ": had ", file_bytes_, " bytes when it was opened and has ", s.st_size, " now"));
  }
  if (ModifiedNs(s) != modified_ns_) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": was written to since it was opened"));
  }
  return absl::OkStatus();
}

File::File(File&& other) noexcept { *this = std::move(other); }

File& File::operator=(File&& other) noexcept {
  if (this == &other) return *this;
  Close();
  path_ = std::move(other.path_);
  header_ = std::move(other.header_);
  descriptor_ = std::exchange(other.descriptor_, -1);
  mapping_ = std::exchange(other.mapping_, nullptr);
  file_bytes_ = std::exchange(other.file_bytes_, 0);
  data_offset_ = other.data_offset_;
  modified_ns_ = other.modified_ns_;
  return *this;
}

File::~File() { Close(); }

void File::Close() {
  if (mapping_ != nullptr) {
    truncation::Unregister(mapping_);
    munmap(const_cast<std::byte*>(mapping_), file_bytes_);
  }
  if (descriptor_ >= 0) close(descriptor_);
  mapping_ = nullptr;
  descriptor_ = -1;
}

}  // namespace verbena::safetensors
