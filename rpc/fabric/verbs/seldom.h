#pragma once
// For warnings of what a peer can bring about as often as it likes. One thread.
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "rpc/base/clock.h"

namespace verbena::fabric::verbs {

class Seldom {
 public:
  // Whether this one is to be logged: one a second is, the others are counted.
  bool Due() {
    const int64_t now_ns = SteadyNs();
    if (now_ns < next_ns_) {
      ++kept_back_;
      return false;
    }
    next_ns_ = now_ns + 1'000'000'000;
    return true;
  }
  // Of those that were not; for the end of the line.
  std::string KeptBack() {
    const uint64_t count = kept_back_;
    kept_back_ = 0;
    return count == 0 ? std::string() : absl::StrCat(" (and ", count, " like it before)");
  }

 private:
  int64_t next_ns_ = 0;
  uint64_t kept_back_ = 0;
};

}  // namespace verbena::fabric::verbs
