#pragma once
// What the driver knows about an address: which GPU's memory it is, what allocation it lies in, and
// how another process can reach that.
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "rpc/gpu/driver.h"

namespace verbena::gpu {

enum class MemoryKind : uint8_t {
  kMalloc,   // cudaMalloc: one allocation, exportable by CUDA IPC
  kPool,     // cudaMallocAsync and other pools: not exportable as they are used
  kVirtual,  // cuMemCreate and cuMemMap: a mapping is one physical allocation
  // cudaMallocManaged: wanders between host and GPU, wherever it is at the moment. Neither exported
  // nor given to NICs, which would go on with the pages where it was; copied like a GPU's own.
  kManaged,
};

struct PointerFacts {
  int ordinal = -1;
  MemoryKind kind = MemoryKind::kMalloc;
  // The allocation, of kVirtual the mapping.
  abi::Address base = 0;
  uint64_t bytes = 0;
  // Changes when the same addresses are allocated, or mapped, again.
  uint64_t driver_id = 0;
  bool ipc = false;         // cuIpcGetMemHandle takes it
  bool descriptor = false;  // its physical memory was made with a POSIX descriptor in mind
};

// NOT_FOUND: no memory of a GPU, or freed; the text names page-locked memory of the host
// (cudaHostAlloc), which is the host's whatever GPUs reach it. UNIMPLEMENTED: the driver is too old
// to tell mappings apart. Any thread, with or without a context; a tenth of a microsecond.
absl::StatusOr<PointerFacts> FactsOf(const Driver& driver, abi::Address address);

// PointerFacts::driver_id alone; nothing where there is no memory of a GPU. A third of what FactsOf
// takes.
std::optional<uint64_t> DriverIdOf(const Driver& driver, abi::Address address);

// Where a copy may start or end without help: device memory, managed memory, which is either the
// host's or a device's at the moment, or page-locked host memory.
enum class Reach : uint8_t { kDevice, kManaged, kPinned, kPageable };
// Of [address, address + bytes). As fast as FactsOf.
Reach ReachOf(const Driver& driver, abi::Address address, uint64_t bytes);

// The same for who asks again and again: not about what lies in the GPU's allocation that it found
// last. One that was freed since is still taken for a GPU's; the driver refuses a copy of it then,
// or, where the host has these addresses now, makes it before it returns. One thread at a time.
class LastReach {
 public:
  Reach Of(const Driver& driver, abi::Address address, uint64_t bytes);

 private:
  abi::Address begin_ = 0, end_ = 0;
};

}  // namespace verbena::gpu
