#pragma once
// What the parts of the fake driver share; each fakes some calls of the table.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/gpu/fake_driver.h"

// Whether this call is to fail; counts it.
#define FAKE_CALL(name)                               \
  if (Result refused; the->Refuses(#name, refused)) { \
    return refused;                                   \
  }

namespace verbena::gpu::fake {

using abi::Address;
using abi::Result;

constexpr size_t kUnitBytes = 2 << 20;

// The one that was made last.
extern FakeDriver* the;
// Contexts of this thread.
extern thread_local std::vector<abi::Context> current;
extern thread_local int capture_mode;

inline abi::Context ContextOf(int gpu) {
  return reinterpret_cast<abi::Context>(static_cast<uintptr_t>(gpu + 1));
}
inline int GpuOf(abi::Context context) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1;
}

inline FakeDriver::StreamState& Of(abi::Stream stream) {
  return *reinterpret_cast<FakeDriver::StreamState*>(stream);
}
inline FakeDriver::EventState& Of(abi::Event event) {
  return *reinterpret_cast<FakeDriver::EventState*>(event);
}

inline size_t Pages(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

void AddDevices(Driver& table);
void AddMemory(Driver& table);
void AddSharing(Driver& table);
void AddStreams(Driver& table);

}  // namespace verbena::gpu::fake
