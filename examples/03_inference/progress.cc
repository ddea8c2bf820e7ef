#include "examples/03_inference/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace verbena::examples {
namespace {

constexpr size_t kBarWidth = 30;
// Faster is not seen; slower looks stuck.
constexpr absl::Duration kRedraw = absl::Milliseconds(50);

}  // namespace

Progress::Progress(std::string label, uint64_t bytes_total)
    : label_(std::move(label)),
      bytes_total_(bytes_total),
      begin_(absl::Now()),
      terminal_(isatty(STDERR_FILENO) == 1) {}

void Progress::Advance(uint64_t bytes, const std::string& what) {
  bytes_done_ += bytes;
  if (!terminal_ || absl::Now() - drawn_ < kRedraw) return;
  Draw(what);
}

void Progress::Finish() {
  Draw("");
  std::fputc('\n', stderr);
}

void Progress::Draw(const std::string& what) {
  drawn_ = absl::Now();
  // \033[K clears what an earlier, longer line left.
  std::fprintf(stderr, "%s%s%s", terminal_ ? "\r" : "", Line(what, drawn_ - begin_).c_str(),
               terminal_ ? "\033[K" : "");
}

std::string Progress::Line(const std::string& what, absl::Duration elapsed) const {
  const uint64_t done = std::min(bytes_done_, bytes_total_);
  const double part =
      bytes_total_ == 0 ? 1 : static_cast<double>(done) / static_cast<double>(bytes_total_);
  const size_t full = static_cast<size_t>(part * kBarWidth);
  return absl::StrCat(label_, " [", std::string(full, '#'), std::string(kBarWidth - full, '.'),
                      "] ", absl::StrFormat("%3d %%", static_cast<int>(part * 100)), " of ",
                      HumanBytes(bytes_total_), " in ",
                      absl::StrFormat("%.1f s", absl::ToDoubleSeconds(elapsed)),
                      what.empty() ? "" : "  ", what);
}

std::string HumanBytes(uint64_t bytes) {
  constexpr const char* units[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return absl::StrCat(bytes, " bytes");
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(units); ++unit) value /= 1024;
  return absl::StrFormat("%.2f %s", value, units[unit]);
}

std::string HumanRate(uint64_t bytes, absl::Duration elapsed) {
  const double seconds = std::max(absl::ToDoubleSeconds(elapsed), 1e-9);
  return absl::StrFormat("%.3f GB/s", static_cast<double>(bytes) / seconds / 1e9);
}

}  // namespace verbena::examples
