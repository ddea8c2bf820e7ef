#include "examples/03_inference/truncation.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "absl/base/const_init.h"
#include "absl/synchronization/mutex.h"

namespace verbena::safetensors::truncation {
namespace {

// Read by the signal handler: no lock there, hence the atomic that is written last and cleared
// first.
struct Mapping {
  std::atomic<uintptr_t> begin{0};
  uint64_t bytes = 0;
  char path[kPathBytesMax] = {};
};
Mapping mappings[kMappingCountMax];
absl::Mutex writers(absl::kConstInit);
struct sigaction previous;

void Say(const char* text) {
  // A failing write to stderr leaves nothing better to do.
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

void OnSigbus(int, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Mapping& mapping : mappings) {
    const uintptr_t begin = mapping.begin.load(std::memory_order_acquire);
    if (begin == 0 || address < begin || address - begin >= mapping.bytes) continue;
    Say("fatal: ");
    Say(mapping.path);
    Say(" was truncated, or its device failed, while it was mapped and read\n");
    break;
  }
  // The faulting instruction runs again, into the previous handler.
  sigaction(SIGBUS, &previous, nullptr);
}

}  // namespace

void ReportOnSigbus() {
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_sigaction = OnSigbus;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, &previous) == 0;
  }();
  static_cast<void>(installed);
}

void Register(const std::byte* begin, uint64_t bytes, const std::string& path) {
  absl::MutexLock lock(&writers);
  for (Mapping& mapping : mappings) {
    if (mapping.begin.load(std::memory_order_relaxed) != 0) continue;
    mapping.bytes = bytes;
    std::strncpy(mapping.path, path.c_str(), kPathBytesMax - 1);
    mapping.begin.store(reinterpret_cast<uintptr_t>(begin), std::memory_order_release);
    return;
  }
}

void Unregister(const std::byte* begin) {
  absl::MutexLock lock(&writers);
  for (Mapping& mapping : mappings) {
    if (mapping.begin.load(std::memory_order_relaxed) == reinterpret_cast<uintptr_t>(begin)) {
      mapping.begin.store(0, std::memory_order_release);
    }
  }
}

}  // namespace verbena::safetensors::truncation
