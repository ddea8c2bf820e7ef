#pragma once
// Who can touch which bytes. A memory::Device is a kind of memory (host, a GPU, the tests' fake
// whose memory the CPU may not touch); a memory::CopyEngine moves bytes to or from it for one
// reactor; a memory::Region is one allocation that the library knows. Fabrics move bytes between
// regions only through these, so they never include CUDA.
//
// Invariant: nobody dereferences a Region's address unless device().host_accessible().
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "verbena/device.h"
#include "verbena/path.h"

namespace verbena::memory {

class Device;

// A range that was allocated as one. `buffer_id` changes when the same addresses are freed and
// allocated again.
struct Extent {
  std::byte* base = nullptr;
  size_t bytes = 0;
  uint64_t buffer_id = 0;
};

// How an extent is made reachable for another process, or (kDmaBuf) a NIC. kHostPeer asks for the
// best of the others that a process of this host can import; the Export says which it became.
enum class ExportWay : uint8_t { kMemfd, kProcess, kIpc, kVmmDescriptor, kDmaBuf, kHostPeer };

// What goes to the peer: plain words, and at most one descriptor, sent over the links' side socket.
struct Export {
  ExportWay way = ExportWay::kMemfd;
  int fd = -1;          // owned by whoever holds the Export; -1 = none
  uint64_t offset = 0;  // of the extent within the descriptor
  uint64_t bytes = 0;
  uint64_t buffer_id = 0;
  uint64_t address = 0;                  // kProcess: where it lies in the owner
  std::array<std::byte, 64> handle{};    // kIpc
  std::array<std::byte, 16> hardware{};  // of a GPU: which one it is, whatever processes number it
};

// A peer's extent, usable here.
struct Mapping {
  Device* device = nullptr;
  std::byte* base = nullptr;
  size_t bytes = 0;
  Path path = Path::kMapped;  // what a copy from it to memory of `device` is
};

// Order with respect to a stream of a GPU, by the device's own handle; null: none. A copy begins
// when what is queued on the stream now has ended, and what is queued there from now on begins when
// the copy has ended. Copies within host memory have no such order.
struct StreamOrder {
  void* stream = nullptr;
};

// Work on a stream that has to end before memory may be read.
class Readiness {
 public:
  virtual ~Readiness() = default;
  // Whether it has: a load. For ever, once it is true. Any thread.
  virtual bool ready() const = 0;
  // Not OK: it never will, since the device failed. May ask the driver, for microseconds. Any
  // thread.
  virtual absl::Status Look() const { return absl::OkStatus(); }
};
using ReadinessRef = std::shared_ptr<const Readiness>;

struct CopyPiece {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t bytes = 0;
};

// Moves bytes for one reactor, in order, a budget at a time.
class CopyEngine {
 public:
  virtual ~CopyEngine() = default;
  // Queues one copy; `pieces` are copied before this returns, the memory they name stays valid
  // until `tag` is reported. False: the queue is full (kCopiesInFlightMax), try again after Poll.
  // Reactor thread only.
  virtual bool Copy(uint64_t tag, absl::Span<const CopyPiece> pieces, StreamOrder order) = 0;
  // Works for at most `budget_bytes`, looking at `yield` every 4 to 8 KiB and returning early when
  // it is true. Calls `done(tag, ok)` for each copy that ended; ok = false: a range faulted.
  // Returns whether copies are left. Reactor thread only.
  virtual bool Poll(size_t budget_bytes, absl::FunctionRef<bool()> yield,
                    absl::FunctionRef<void(uint64_t tag, bool ok)> done) = 0;
  // Whether the copy, which has not ended, stands in its stream: what is queued there from now on
  // begins when it has ended. Reactor thread only.
  virtual bool Ordered(uint64_t tag) const {
    (void)tag;
    return false;
  }
};

class Device {
 public:
  virtual ~Device() = default;
  virtual ::verbena::Device where() const = 0;
  // Whether the CPU may load and store there.
  virtual bool host_accessible() const = 0;
  // Not OK: a fault that stays, of the hardware or of work that ran there. Nothing can be moved
  // from or to it any more, and a copy that was queued may have failed for it. Any thread.
  virtual absl::Status health() const { return absl::OkStatus(); }
  // What Export::hardware says of it: two devices, of whatever processes, are one piece of hardware
  // where this is the same. Any thread.
  virtual std::array<std::byte, 16> hardware() const { return {}; }

  // The methods below may block: setup thread only. What fails by the hardware or by work that ran
  // there is DATA_LOSS or ABORTED, as health() says from then on, and what nobody foresaw INTERNAL:
  // callers pass these on.

  // Of memory that the host cannot touch it does not block: any thread. NOT_FOUND: not memory of
  // this device, not all of it, or freed; INVALID_ARGUMENT: no bytes. Both say to users what they
  // wrapped, and to a READ that its destination is gone. UNIMPLEMENTED: memory that is mapped so
  // that its parts cannot be told.
  virtual absl::StatusOr<std::vector<Extent>> Describe(const void* pointer, size_t bytes) = 0;
  // Three say that the memory is there and cannot be given to a process or a NIC in that way, so
  // that callers go by way of stages, and remember it: UNIMPLEMENTED (no memory of this device, or
  // driver, can), FAILED_PRECONDITION (this memory cannot: how it was allocated), PERMISSION_DENIED
  // (the system does not let it). RESOURCE_EXHAUSTED: not now; stages for what is leased now, and
  // it is tried again. NOT_FOUND: freed, or allocated again: the lease is refused.
  virtual absl::StatusOr<Export> ExportTo(const Extent& extent, ExportWay way) = 0;
  // Takes the descriptor, of an error too. FAILED_PRECONDITION, UNIMPLEMENTED: no export that this
  // device can map; OUT_OF_RANGE: the peer said another size than there is; RESOURCE_EXHAUSTED,
  // PERMISSION_DENIED: as ExportTo. READs of a device's memory go by way of stages for all of them;
  // those of host memory fail.
  virtual absl::StatusOr<Mapping> Import(Export from_peer) = 0;
  virtual void Release(const Mapping& mapping) = 0;
  // Makes later copies from a range of it faster, where that is known to be so.
  virtual void Populate(const Mapping&, uint64_t offset, uint64_t bytes) {
    (void)offset, (void)bytes;
  }
  // Makes copies between host memory and this device faster for as long as it lasts: page-locks
  // it. False: it did not. Not read or written by this.
  virtual bool LockHost(const Mapping& host, bool read_only) {
    (void)host, (void)read_only;
    return false;
  }
  virtual void UnlockHost(const Mapping& host) { (void)host; }
  // RESOURCE_EXHAUSTED: no memory is left; the pools give back what they keep, and ask once more.
  // UNIMPLEMENTED: this device allocates nothing for others: users wrap memory of their own.
  virtual absl::StatusOr<Extent> Allocate(size_t bytes) = 0;
  virtual void Free(const Extent& extent) = 0;

  // Any thread.
  virtual std::unique_ptr<CopyEngine> MakeCopyEngine() = 0;
  // Whether what Describe said of an extent still holds: it was not freed since. A fraction of a
  // microsecond. Any thread.
  virtual bool IsThere(const Extent& extent) {
    const absl::StatusOr<std::vector<Extent>> now = Describe(extent.base, 1);
    return now.ok() && now->front().base == extent.base &&
           now->front().buffer_id == extent.buffer_id;
  }
  // What this device's engines make of a copy from a mapping whose path is `mapped`. A fraction of
  // a microsecond. Any thread.
  virtual Path PathOf(const CopyPiece& piece, Path mapped) const {
    (void)piece;
    return mapped;
  }
  // The end of what is queued on the stream now. Waits for nothing. Any thread. UNIMPLEMENTED: a
  // device that has no streams; FAILED_PRECONDITION: the stream is being captured into a graph.
  // Callers end the call or the fetch with it.
  virtual absl::StatusOr<ReadinessRef> Record(StreamOrder order) {
    (void)order;
    return absl::UnimplementedError("memory of the host is not of a stream: wait for it first");
  }
  // Whether copies may be ordered by it, which engines queue on threads of the library's. Any
  // thread; asks nobody. INVALID_ARGUMENT: it is another stream on each thread.
  virtual absl::Status CheckOrder(StreamOrder order) const {
    (void)order;
    return absl::OkStatus();
  }
  // Whether what lies there wanders between the host and such devices (cudaMallocManaged), whatever
  // it was wrapped as: a NIC would go on with the pages where it was. Any thread; a fraction of a
  // microsecond.
  virtual bool Wanders(const void* address) const {
    (void)address;
    return false;
  }
};

// The devices of this process: host always; GPUs and the fake when they register themselves. Any
// thread.
Device& HostDevice();
// NOT_FOUND names the device, and those that there are.
absl::StatusOr<Device*> FindDevice(::verbena::Device where);
// Why the process has no GPUs, or not all that were named; empty: it has. FindDevice says it too.
void SayNoGpus(std::string why);
// "host", "cuda:0". Any thread.
std::string NameOf(::verbena::Device where);
void RegisterDevice(std::unique_ptr<Device> device);
// As Device::Wanders, of any device of this process. Any thread.
bool Wanders(const void* address);
// Which device of this process imports what a peer exported from one of `kind`, `from_peer`, to be
// copied to memory of `destination`: that itself where it is of the kind, since then it can take
// part in the copy; else the same hardware, else any. Null: this process has none.
Device* ImporterFor(::verbena::Device::Kind kind, const Export& from_peer, Device& destination);

}  // namespace verbena::memory
