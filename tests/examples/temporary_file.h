#pragma once
// A file of a test's own, gone with the object.
#include <stdlib.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "tests/catch.h"

namespace verbena::examples {

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& contents) {
    char path[] = "/tmp/verbena_test_XXXXXX";
    descriptor_ = mkstemp(path);
    REQUIRE(descriptor_ >= 0);
    path_ = path;
    Write(0, contents);
  }
  ~TemporaryFile() {
    close(descriptor_);
    unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }
  void Write(uint64_t offset, const std::string& bytes) {
    REQUIRE(pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset)) ==
            static_cast<ssize_t>(bytes.size()));
  }
  void Truncate(uint64_t bytes) { REQUIRE(ftruncate(descriptor_, static_cast<off_t>(bytes)) == 0); }

 private:
  int descriptor_ = -1;
  std::string path_;
};

// 8 bytes, little-endian.
inline std::string LittleEndian(uint64_t value) {
  std::string raw;
  for (int i = 0; i < 8; ++i) raw.push_back(static_cast<char>(value >> (8 * i)));
  return raw;
}

}  // namespace verbena::examples
