#include "rpc/gpu/pointer.h"

#include "absl/strings/str_cat.h"

namespace verbena::gpu {
namespace {

using abi::PointerAttribute;

absl::Status NotGpuMemory(abi::Address address, bool host) {
  return absl::NotFoundError(
      absl::StrCat("cuda: 0x", absl::Hex(address),
                   host ? " is page-locked memory of the host: wrap it as Device::Host()"
                        : " is not allocated on a GPU"));
}

// Of memory mapped by hand, the range attributes describe what was reserved around it.
absl::Status SetMapping(const Driver& driver, abi::Address address, PointerFacts& facts) {
  PointerAttribute wanted[] = {PointerAttribute::kMappingBase, PointerAttribute::kMappingBytes};
  uint64_t base = 0, bytes = 0;
  void* values[] = {&base, &bytes};
  const abi::Result r = driver.cuPointerGetAttributes(2, wanted, values, address);
  if (r != abi::kSuccess || base == 0) {
    return absl::UnimplementedError(
        "cuda: this driver does not tell the mappings of virtual memory apart");
  }
  facts.base = base;
  facts.bytes = bytes;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PointerFacts> FactsOf(const Driver& driver, abi::Address address) {
  PointerAttribute wanted[] = {PointerAttribute::kMemoryType,
                               PointerAttribute::kDeviceOrdinal,
                               PointerAttribute::kBufferId,
                               PointerAttribute::kRangeStart,
                               PointerAttribute::kRangeBytes,
                               PointerAttribute::kLegacyIpcCapable,
                               PointerAttribute::kAllowedHandleTypes,
                               PointerAttribute::kIsManaged,
                               PointerAttribute::kPool,
                               PointerAttribute::kContext};
  // Each as wide as the widest, and zero: some are written with 4 bytes, one with a single byte.
  uint64_t type = 0, ordinal = 0, id = 0, start = 0, bytes = 0, ipc = 0, handles = 0, managed = 0,
           pool = 0, context = 0;
  void* values[] = {&type, &ordinal, &id,      &start, &bytes,
                    &ipc,  &handles, &managed, &pool,  &context};
  const abi::Result r = driver.cuPointerGetAttributes(10, wanted, values, address);
  const bool host = static_cast<uint32_t>(type) == abi::kMemoryTypeHost;
  const bool device = static_cast<uint32_t>(type) == abi::kMemoryTypeDevice || (managed & 1) != 0;
  if (r != abi::kSuccess || !device || start == 0) {
    return NotGpuMemory(address, r == abi::kSuccess && host);
  }
  PointerFacts facts;
  facts.ordinal = static_cast<int32_t>(ordinal);
  facts.base = start;
  facts.bytes = bytes;
  facts.driver_id = id;
  if ((managed & 1) != 0) {
    facts.kind = MemoryKind::kManaged;
  } else if (pool != 0) {
    facts.kind = MemoryKind::kPool;
  } else if (context == 0) {
    facts.kind = MemoryKind::kVirtual;
    facts.descriptor = (handles & abi::kHandleTypePosix) != 0;
    if (absl::Status s = SetMapping(driver, address, facts); !s.ok()) return s;
  } else {
    facts.ipc = (ipc & 1) != 0;
  }
  return facts;
}

std::optional<uint64_t> DriverIdOf(const Driver& driver, abi::Address address) {
  PointerAttribute wanted[] = {PointerAttribute::kMemoryType, PointerAttribute::kIsManaged,
                               PointerAttribute::kBufferId};
  uint64_t type = 0, managed = 0, id = 0;
  void* values[] = {&type, &managed, &id};
  if (driver.cuPointerGetAttributes(3, wanted, values, address) != abi::kSuccess) return {};
  if (static_cast<uint32_t>(type) != abi::kMemoryTypeDevice && (managed & 1) == 0) return {};
  return id;
}

namespace {

// `begin` and `end` become what the driver says of the allocation.
Reach Ask(const Driver& driver, abi::Address address, uint64_t bytes, abi::Address& begin,
          abi::Address& end) {
  PointerAttribute wanted[] = {PointerAttribute::kMemoryType, PointerAttribute::kRangeStart,
                               PointerAttribute::kRangeBytes, PointerAttribute::kIsManaged};
  uint64_t type = 0, start = 0, range = 0, managed = 0;
  void* values[] = {&type, &start, &range, &managed};
  if (driver.cuPointerGetAttributes(4, wanted, values, address) != abi::kSuccess) {
    return Reach::kPageable;
  }
  begin = start;
  end = start + range;
  if ((managed & 1) != 0) return Reach::kManaged;
  if (static_cast<uint32_t>(type) == abi::kMemoryTypeDevice) return Reach::kDevice;
  const bool whole = static_cast<uint32_t>(type) == abi::kMemoryTypeHost && address >= start &&
                     bytes <= range - (address - start);
  return whole ? Reach::kPinned : Reach::kPageable;
}

}  // namespace

Reach ReachOf(const Driver& driver, abi::Address address, uint64_t bytes) {
  abi::Address begin = 0, end = 0;
  return Ask(driver, address, bytes, begin, end);
}

Reach LastReach::Of(const Driver& driver, abi::Address address, uint64_t bytes) {
  if (address >= begin_ && address < end_ && bytes <= end_ - address) return Reach::kDevice;
  abi::Address begin = 0, end = 0;
  const Reach reach = Ask(driver, address, bytes, begin, end);
  if (reach == Reach::kDevice) begin_ = begin, end_ = end;
  return reach;
}

}  // namespace verbena::gpu
