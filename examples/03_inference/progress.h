#pragma once
// A progress bar on stderr: redrawn in place on a terminal, one line at the end otherwise.
#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace verbena::examples {

// One thread.
class Progress {
 public:
  // `bytes_total` may be 0.
  Progress(std::string label, uint64_t bytes_total);
  // `what` is shown beside the bar.
  void Advance(uint64_t bytes, const std::string& what);
  // Draws the bar a last time and ends its line.
  void Finish();

  // The line as it stands after `elapsed`; for tests.
  std::string Line(const std::string& what, absl::Duration elapsed) const;

 private:
  void Draw(const std::string& what);

  const std::string label_;
  const uint64_t bytes_total_;
  const absl::Time begin_;
  const bool terminal_;
  uint64_t bytes_done_ = 0;
  absl::Time drawn_ = absl::InfinitePast();
};

// "1.50 GiB", "12 bytes".
std::string HumanBytes(uint64_t bytes);
// "3.210 GB/s", of 10^9 bytes.
std::string HumanRate(uint64_t bytes, absl::Duration elapsed);

}  // namespace verbena::examples
