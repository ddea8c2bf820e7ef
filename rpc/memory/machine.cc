#include "rpc/memory/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/numbers.h"

namespace verbena::memory {
namespace {

std::string FirstWord(const char* path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

uint64_t ReadMemoryBytes() {
  uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                   static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
  uint64_t group = 0;
  if (absl::SimpleAtoi(FirstWord("/sys/fs/cgroup/memory.max"), &group) && group > 0) {
    bytes = std::min(bytes, group);
  }
  return bytes;
}

// "0-3", "0,2-5": the highest number + 1.
int ReadNodes() {
  const std::string list = FirstWord("/sys/devices/system/node/online");
  const size_t digits = list.find_last_not_of("0123456789");
  int last = 0;
  if (!absl::SimpleAtoi(list.substr(digits == std::string::npos ? 0 : digits + 1), &last)) return 1;
  return std::clamp(last, 0, 1023) + 1;
}

uint64_t ReadCacheBytes() {
  long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (bytes <= 0) bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (bytes > 0) return static_cast<uint64_t>(bytes);
  // aarch64's C library does not say: ask the kernel for the highest level.
  for (int index = 4; index >= 0; --index) {
    const std::string path =
        "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size";
    std::string word = FirstWord(path.c_str());
    if (word.empty()) continue;
    const uint64_t unit = word.back() == 'K' ? 1024 : word.back() == 'M' ? 1 << 20 : 1;
    if (unit > 1) word.pop_back();
    uint64_t count = 0;
    if (absl::SimpleAtoi(word, &count)) return count * unit;
  }
  return 0;
}

}  // namespace

uint64_t MachineMemoryBytes() {
  static const uint64_t bytes = ReadMemoryBytes();
  return bytes;
}

int NumaNodes() {
  static const int nodes = ReadNodes();
  return nodes;
}

int NumaNodeHere() {
  unsigned cpu = 0, node = 0;
  return getcpu(&cpu, &node) == 0 ? static_cast<int>(node) : 0;
}

uint64_t LastLevelCacheBytes() {
  static const uint64_t bytes = ReadCacheBytes();
  return bytes;
}

}  // namespace verbena::memory
