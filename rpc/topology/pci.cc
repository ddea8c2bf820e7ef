#include "rpc/topology/pci.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace verbena::topology {
namespace {

// Further lines are of a ROM, and of what lies behind a bridge.
constexpr int kBars = 6;

std::string FolderOf(absl::string_view address, absl::string_view root) {
  return absl::StrCat(root, "/bus/pci/devices/", absl::AsciiStrToLower(address));
}

}  // namespace

PciPath PathOf(const std::string& folder) {
  const std::unique_ptr<char, decltype(&std::free)> real(realpath(folder.c_str(), nullptr),
                                                         &std::free);
  PciPath path;
  if (real == nullptr) return path;
  for (const absl::string_view part : absl::StrSplit(real.get(), '/')) {
    // What lies above the host bridge is of no interest; below the device is its driver's.
    if (path.empty() ? !absl::StartsWith(part, "pci") : !absl::StrContains(part, ':')) {
      if (!path.empty()) break;
      continue;
    }
    path.emplace_back(part);
  }
  if (path.size() < 2) path.clear();
  return path;
}

PciPath PathOfPci(absl::string_view address, absl::string_view root) {
  return address.empty() ? PciPath() : PathOf(FolderOf(address, root));
}

int PciDistance(const PciPath& a, const PciPath& b) {
  if (a.empty() || b.empty()) return -1;
  const size_t most = std::min(a.size(), b.size());
  size_t shared = 0;
  while (shared < most && a[shared] == b[shared]) ++shared;
  const int apart = std::min(static_cast<int>(a.size() + b.size() - 2 * shared), 99);
  if (apart == 0) return 0;
  return (shared == 0 ? kPciProcessors : shared == 1 ? kPciHostBridge : 0) + apart;
}

absl::string_view PciNearness(int distance) {
  if (distance < 0) return "at an unknown distance";
  if (distance == 0) return "the same device";
  if (distance < kPciHostBridge) return "behind one switch";
  return distance < kPciProcessors ? "behind one host bridge" : "behind another host bridge";
}

int NearestPci(const PciPath& from, absl::Span<const PciPath> others) {
  int nearest = -1, least = -1;
  for (size_t i = 0; i < others.size(); ++i) {
    const int distance = PciDistance(from, others[i]);
    if (distance < 0 || (nearest >= 0 && distance >= least)) continue;
    nearest = static_cast<int>(i);
    least = distance;
  }
  return nearest;
}

uint64_t LargestBarBytes(absl::string_view address, absl::string_view root) {
  if (address.empty()) return 0;
  // A line for each: begin, end and flags, in hexadecimal; zeros where there is none.
  std::ifstream file(FolderOf(address, root) + "/resource");
  std::string line;
  uint64_t largest = 0;
  for (int bar = 0; bar < kBars && std::getline(file, line); ++bar) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint64_t begin = 0, end = 0;
    if (words.size() < 2 || !absl::SimpleHexAtoi(words[0], &begin) ||
        !absl::SimpleHexAtoi(words[1], &end) || end <= begin) {
      continue;
    }
    largest = std::max(largest, end - begin + 1);
  }
  return largest;
}

}  // namespace verbena::topology
