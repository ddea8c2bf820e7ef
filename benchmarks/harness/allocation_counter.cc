#include "benchmarks/harness/allocation_counter.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>

namespace verbena::benchmarks {
namespace {

constexpr int kFrames = 12;
// Distinct callers. When the table is full further ones are counted as ours, never lost.
constexpr size_t kSitesMax = 4096;

struct Site {
  std::atomic<uint64_t> hash{0};
  std::atomic<uint64_t> count{0};
  std::atomic<int> depth{0};
  void* frames[kFrames];
};
Site g_sites[kSitesMax];
std::atomic<uint64_t> g_overflow{0};
std::atomic<bool> g_on{false};
thread_local bool t_inside = false;  // backtrace() allocates at its first call
thread_local bool t_left_out = false;

bool StartsWithAny(const char* name, std::initializer_list<const char*> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [name](const char* p) { return std::strncmp(name, p, std::strlen(p)) == 0; });
}

const char* SymbolOf(void* address) {
  Dl_info info{};
  return dladdr(address, &info) && info.dli_sname ? info.dli_sname : "";
}

bool IsStandardLibrary(const char* symbol) {
  return StartsWithAny(
      symbol, {"_ZNSt", "_ZNKSt", "_ZSt", "_ZNSs", "_ZNKSs", "_ZN9__gnu_cxx", "_Znwm", "_Znam"});
}

// First frame that is not the standard library's decides. Frames 0 and 1 are Record and operator
// new.
bool IsProtobufs(const Site& site) {
  for (int i = 2; i < site.depth; ++i) {
    const char* symbol = SymbolOf(site.frames[i]);
    if (IsStandardLibrary(symbol)) continue;
    return StartsWithAny(symbol, {"_ZN6google8protobuf", "_ZNK6google8protobuf",
                                  "_ZN18verbena_benchmarks", "_ZNK18verbena_benchmarks"});
  }
  return false;
}

[[gnu::noinline]] void Record() {
  if (t_inside || t_left_out) return;
  t_inside = true;
  void* frames[kFrames];
  const int depth = backtrace(frames, kFrames);
  uint64_t hash = 1469598103934665603u;
  for (int i = 0; i < depth; ++i)
    hash = (hash ^ reinterpret_cast<uintptr_t>(frames[i])) * 1099511628211u;
  hash |= 1;
  bool stored = false;
  for (size_t probe = 0; probe < 64 && !stored; ++probe) {
    Site& site = g_sites[(hash + probe) % kSitesMax];
    uint64_t expected = 0;
    if (site.hash.compare_exchange_strong(expected, hash)) {
      std::memcpy(site.frames, frames, sizeof(frames));
      site.depth = depth;
      expected = hash;
    }
    if (expected != hash) continue;
    ++site.count;
    stored = true;
  }
  if (!stored) ++g_overflow;
  t_inside = false;
}

[[gnu::always_inline]] inline void* Allocate(size_t bytes, size_t align) {
  if (g_on.load(std::memory_order_relaxed)) Record();
  void* p = nullptr;
  if (align <= alignof(std::max_align_t)) {
    p = std::malloc(bytes ? bytes : 1);
  } else if (posix_memalign(&p, align, bytes) != 0) {
    p = nullptr;
  }
  return p;
}

[[gnu::always_inline]] inline void* AllocateOrThrow(size_t bytes, size_t align) {
  void* p = Allocate(bytes, align);
  if (!p) throw std::bad_alloc();
  return p;
}

}  // namespace

bool AllocationCounterPresent() { return true; }

void CountAllocations(bool on) { g_on = on; }

void LeaveOutAllocationsHere(bool out) { t_left_out = out; }

uint64_t AllocationCount() {
  uint64_t total = g_overflow;
  for (const Site& site : g_sites) {
    if (site.count != 0 && !IsProtobufs(site)) total += site.count;
  }
  return total;
}

void PrintAllocationSites() {
  const bool was_on = g_on.exchange(false);
  for (const Site& site : g_sites) {
    if (site.count == 0) continue;
    std::fprintf(stderr, "%8lu allocations%s\n", static_cast<unsigned long>(site.count.load()),
                 IsProtobufs(site) ? " (protobuf's)" : "");
    for (int i = 2; i < site.depth; ++i) {
      const char* symbol = SymbolOf(site.frames[i]);
      char* readable = abi::__cxa_demangle(symbol, nullptr, nullptr, nullptr);
      std::fprintf(stderr, "      %s\n", readable ? readable : *symbol ? symbol : "?");
      std::free(readable);
    }
  }
  g_on = was_on;
}

}  // namespace verbena::benchmarks

using verbena::benchmarks::Allocate;
using verbena::benchmarks::AllocateOrThrow;

void* operator new(size_t n) { return AllocateOrThrow(n, 0); }
void* operator new[](size_t n) { return AllocateOrThrow(n, 0); }
void* operator new(size_t n, const std::nothrow_t&) noexcept { return Allocate(n, 0); }
void* operator new[](size_t n, const std::nothrow_t&) noexcept { return Allocate(n, 0); }
void* operator new(size_t n, std::align_val_t a) {
  return AllocateOrThrow(n, static_cast<size_t>(a));
}
void* operator new[](size_t n, std::align_val_t a) {
  return AllocateOrThrow(n, static_cast<size_t>(a));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { std::free(p); }
