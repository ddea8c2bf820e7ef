#pragma once
// SHA-256, for proving that a tensor arrived as it left. SHA-256 and not a CRC because anyone can
// check it with `sha256sum`, because it also tells a tampered file from a good one, and because
// OpenSSL's code for it keeps up with a disk; OpenSSL is what TLS needs anyway.
//
//   Sha256 digest;
//   digest.Update(first_part);
//   digest.Update(second_part);
//   std::string hex = digest.Hex();
#include <cstddef>
#include <memory>
#include <string>

#include "absl/types/span.h"

namespace verbena::examples {

// Any thread; not concurrently on one object. Cost: one allocation at construction; 0.4 to 2 GB/s.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  // `bytes` is not used after the return.
  void Update(absl::Span<const std::byte> bytes);
  // 64 lower-case hexadecimal digits. Ends the digest: call it once, and Update() no more.
  std::string Hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Of one piece.
std::string Sha256Hex(absl::Span<const std::byte> bytes);

}  // namespace verbena::examples
