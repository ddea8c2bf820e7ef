#include "rpc/fabric/verbs/device_memory.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "rpc/base/log.h"
#include "rpc/fabric/verbs/calls.h"
#include "rpc/fabric/verbs/settings.h"
#include "rpc/fabric/verbs/sysfs.h"

namespace verbena::fabric::verbs {
namespace {

// What a GPU's memory is mapped by: a range takes whole ones.
constexpr uint64_t kUnitBytes = 64 << 10;
// Half of the least that a GPU for such work has (256 MiB).
constexpr uint64_t kUnknownWindowBytes = 128 << 20;

struct Taken {
  memory::Device* device = nullptr;
  uint64_t bytes = 0;
};
struct Books {
  absl::Mutex mutex;
  std::map<memory::Device*, uint64_t> registered ABSL_GUARDED_BY(mutex);
  std::map<ibv_mr*, Taken> by_mr ABSL_GUARDED_BY(mutex);
};
Books& TheBooks() {
  static Books* const books = new Books;
  return *books;
}

std::atomic<uint64_t>& WantedMax() {
  static std::atomic<uint64_t> bytes{Settings::FromEnvironment().gpu_direct_bytes_max};
  return bytes;
}

uint64_t MostOf(const memory::NicFacts& facts) {
  const uint64_t wanted = WantedMax().load();
  if (wanted != 0) return wanted;
  return facts.window_bytes == 0 ? kUnknownWindowBytes : facts.window_bytes / 4 * 3;
}

// What [data, data + bytes) takes.
uint64_t UnitsOf(const std::byte* data, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data) / kUnitBytes;
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes + kUnitBytes - 1) / kUnitBytes;
  return (end - begin) * kUnitBytes;
}

absl::Status Take(memory::Device& device, const memory::NicFacts& facts, uint64_t bytes) {
  const uint64_t most = MostOf(facts);
  if (bytes > most) {  // whatever else is given back
    return absl::FailedPreconditionError(
        absl::StrCat(bytes, " bytes of address space for NICs, of which ", most,
                     " may be used (BAR 1; VERBENA_VERBS_GPUDIRECT_BYTES_MAX)"));
  }
  absl::MutexLock lock(&TheBooks().mutex);
  uint64_t& registered = TheBooks().registered[&device];
  if (bytes > most - std::min(most, registered)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        bytes, " bytes of address space for NICs, of ", most, " that may be used (BAR 1; ",
        "VERBENA_VERBS_GPUDIRECT_BYTES_MAX) ", registered, " are taken"));
  }
  registered += bytes;
  return absl::OkStatus();
}

void GiveBack(const Taken& taken) {
  absl::MutexLock lock(&TheBooks().mutex);
  TheBooks().registered[taken.device] -= taken.bytes;
}

// The descriptor is closed again: the registration holds what it needs.
absl::StatusOr<ibv_mr*> ByDmaBuf(ibv_pd* pd, memory::Device& device, const memory::Extent& extent,
                                 const std::byte* data, size_t bytes, int access) {
  const absl::StatusOr<memory::Export> made = device.ExportTo(extent, memory::ExportWay::kDmaBuf);
  if (!made.ok()) {
    // Of this memory: others of the device may well be exported.
    const bool of_memory = absl::IsUnimplemented(made.status());
    return of_memory ? absl::FailedPreconditionError(made.status().message()) : made.status();
  }
  const absl::Cleanup close_descriptor = [&made] {
    if (made->fd >= 0) close(made->fd);
  };
  // The export begins on a page, the extent `offset` behind that; so the offset of what is wanted
  // and its address agree within a page, as the kernel demands.
  const uint64_t offset = made->offset + static_cast<uint64_t>(data - extent.base);
  return Made("ibv_reg_dmabuf_mr",
              TheDeviceCalls().register_dmabuf(pd, offset, bytes, reinterpret_cast<uint64_t>(data),
                                               made->fd, access));
}

absl::StatusOr<ibv_mr*> ByAnyWay(ibv_pd* pd, memory::Device& device, const memory::NicFacts& facts,
                                 const memory::Extent& extent, const std::byte* data, size_t bytes,
                                 int access) {
  absl::StatusOr<ibv_mr*> made =
      absl::UnimplementedError("the device, or its driver, exports no dma-buf");
  if (facts.dma_buf) made = ByDmaBuf(pd, device, extent, data, bytes, access);
  if (made.ok()) return made;
  const DeviceCalls& calls = TheDeviceCalls();
  if (!calls.peermem()) {
    return absl::Status(made.status().code(),
                        absl::StrCat(made.status().message(), "; nvidia_peermem is not loaded"));
  }
  const absl::Status no_dma_buf = made.status();
  made =
      Made("ibv_reg_mr", calls.register_address(pd, const_cast<std::byte*>(data), bytes, access));
  if (made.ok()) return made;
  return absl::Status(
      made.status().code(),
      absl::StrCat(no_dma_buf.message(), "; by nvidia_peermem: ", made.status().message()));
}

}  // namespace

DeviceCalls& TheDeviceCalls() {
  static DeviceCalls calls = {
      .register_dmabuf =
          [](ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access) {
            return ibv_reg_dmabuf_mr(pd, offset, bytes, iova, fd, access);
          },
      .register_address = [](ibv_pd* pd, void* address, size_t bytes,
                             int access) { return ibv_reg_mr(pd, address, bytes, access); },
      .deregister = [](ibv_mr* mr) { return ibv_dereg_mr(mr); },
      .peermem =
          [] {
            return !NamesIn(absl::StrCat(kSysfs, "/module/nvidia_peermem")).empty() ||
                   !NamesIn(absl::StrCat(kSysfs, "/module/nv_peer_mem")).empty();
          },
  };
  return calls;
}

void SetDeviceBytesMax(uint64_t bytes) { WantedMax().store(bytes); }

DeviceBytes DeviceBytesOf(memory::Device& device) {
  DeviceBytes bytes;
  const memory::NicAccess* const access = memory::NicAccessOf(device);
  if (access != nullptr) bytes.most = MostOf(access->nic_facts());
  absl::MutexLock lock(&TheBooks().mutex);
  const auto it = TheBooks().registered.find(&device);
  if (it != TheBooks().registered.end()) bytes.registered = it->second;
  return bytes;
}

absl::StatusOr<ibv_mr*> RegisterDevice(ibv_pd* pd, memory::Device& device,
                                       const memory::Extent& extent, const std::byte* data,
                                       size_t bytes, int access) {
  const memory::NicAccess* const nic = memory::NicAccessOf(device);
  if (nic == nullptr) return absl::UnimplementedError("no NIC reaches memory of this device");
  const memory::NicFacts facts = nic->nic_facts();
  const bool writes = (access & IBV_ACCESS_LOCAL_WRITE) != 0;
  if (writes && !facts.writable) {
    return absl::FailedPreconditionError(
        "what a NIC writes there cannot be flushed, and is not seen in order");
  }
  if (device.Wanders(extent.base)) {
    return absl::FailedPreconditionError("memory that wanders between the host and the device");
  }
  const Taken taken{&device, UnitsOf(data, bytes)};
  if (absl::Status room = Take(device, facts, taken.bytes); !room.ok()) return room;
  absl::StatusOr<ibv_mr*> made = ByAnyWay(pd, device, facts, extent, data, bytes, access);
  if (!made.ok()) {
    GiveBack(taken);
    return made;
  }
  absl::MutexLock lock(&TheBooks().mutex);
  TheBooks().by_mr[*made] = taken;
  return made;
}

bool DeregisterDevice(ibv_mr* mr) {
  Taken taken;
  {
    // Before the registration ends: another may then have its address.
    absl::MutexLock lock(&TheBooks().mutex);
    const auto it = TheBooks().by_mr.find(mr);
    if (it == TheBooks().by_mr.end()) return false;
    taken = it->second;
    TheBooks().by_mr.erase(it);
  }
  const absl::Status status = ErrnoReturned("ibv_dereg_mr", TheDeviceCalls().deregister(mr));
  if (!status.ok()) VERBENA_LOG(kWarning, "verbs: ", status.message());
  GiveBack(taken);
  return true;
}

}  // namespace verbena::fabric::verbs
