#include "rpc/gpu/cuda_device.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/gpu/copy_engine.h"
#include "rpc/memory/known_regions.h"

namespace verbena::gpu {
namespace {

// Allocations whose numbers are remembered. Beyond, an eighth of them, not described for the
// longest time, most of which were freed, are numbered anew, and exported again.
constexpr size_t kKnownMax = 65536;

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(const Driver& driver, int ordinal) {
  std::unique_ptr<CudaDevice> made(new CudaDevice(driver, ordinal));
  const abi::Result r = driver.cuDeviceGet(&made->device_, ordinal);
  if (r == abi::kInvalidDevice) {
    return absl::NotFoundError(absl::StrCat("no GPU cuda:", ordinal, " in this process"));
  }
  if (r != abi::kSuccess) return StatusOf(driver, r, absl::StrCat("cuda:", ordinal));
  abi::Uuid uuid;
  if (driver.cuDeviceGetUuid_v2(&uuid, made->device_) == abi::kSuccess) {
    std::copy(std::begin(uuid.bytes), std::end(uuid.bytes), made->uuid_.begin());
  }
  abi::AllocationProperties how;
  how.handle_types = abi::kHandleTypePosix;
  how.location.id = made->device_;
  // 0 where the GPU has no virtual memory management: Allocate says so.
  driver.cuMemGetAllocationGranularity(&made->granularity_, &how, abi::kGranularityMinimum);
  made->AskNicFacts();
  return made;
}

CudaDevice::~CudaDevice() {
  absl::MutexLock lock(&mutex_);
  VERBENA_DCHECK(own_.empty(), own_.size(), " allocations and imports outlive cuda:", ordinal_);
}

absl::Status CudaDevice::health() const {
  absl::MutexLock lock(&mutex_);
  return health_;
}

absl::Status CudaDevice::Note(abi::Result result, absl::string_view what) {
  absl::Status status = StatusOf(driver_, result, absl::StrCat("cuda:", ordinal_, ": ", what));
  if (IsSticky(result)) {
    absl::MutexLock lock(&mutex_);
    health_.Update(status);
  }
  return status;
}

uint64_t CudaDevice::BufferIdOf(const PointerFacts& facts) {
  absl::MutexLock lock(&mutex_);
  if (known_.size() >= kKnownMax && !known_.contains(facts.base)) ForgetLongestUnused();
  Known& known = known_[facts.base];
  known.used = ++uses_;
  if (known.buffer_id == 0 || known.driver_id != facts.driver_id) {
    known = {facts.driver_id, memory::NextBufferId(), uses_};
  }
  return known.buffer_id;
}

bool CudaDevice::IsThere(const memory::Extent& extent) {
  const auto base = reinterpret_cast<abi::Address>(extent.base);
  uint64_t driver_id = 0;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = known_.find(base);
    if (it == known_.end() || it->second.buffer_id != extent.buffer_id) return false;
    it->second.used = ++uses_;
    driver_id = it->second.driver_id;
  }
  return DriverIdOf(driver_, base) == driver_id;
}

void CudaDevice::ForgetLongestUnused() {
  std::vector<uint64_t> used;
  used.reserve(known_.size());
  for (const auto& [base, known] : known_) used.push_back(known.used);
  const auto eighth = used.begin() + static_cast<ptrdiff_t>(used.size() / 8);
  std::nth_element(used.begin(), eighth, used.end());
  std::erase_if(known_, [last = *eighth](const auto& entry) { return entry.second.used <= last; });
}

absl::StatusOr<std::vector<memory::Extent>> CudaDevice::Describe(const void* pointer,
                                                                 size_t bytes) {
  std::vector<memory::Extent> extents;
  auto at = reinterpret_cast<abi::Address>(pointer);
  if (bytes == 0 || bytes > ~abi::Address{0} - at) {
    return absl::InvalidArgumentError(absl::StrCat(bytes, " bytes at 0x", absl::Hex(at)));
  }
  const abi::Address end = at + bytes;
  while (at < end) {
    const absl::StatusOr<PointerFacts> facts = FactsOf(driver_, at);
    if (!facts.ok()) return facts.status();
    if (facts->ordinal != device_) {
      return absl::NotFoundError(absl::StrCat(
          "0x", absl::Hex(at), " is memory of cuda:", facts->ordinal, ", not of cuda:", ordinal_));
    }
    extents.push_back(
        {reinterpret_cast<std::byte*>(facts->base), facts->bytes, BufferIdOf(*facts)});
    at = facts->base + facts->bytes;
    if (at < end && facts->kind != MemoryKind::kVirtual) {
      return absl::NotFoundError(absl::StrCat(end - at, " of ", bytes, " bytes lie beyond the ",
                                              facts->bytes, " bytes allocated at 0x",
                                              absl::Hex(facts->base)));
    }
  }
  return extents;
}

std::unique_ptr<memory::CopyEngine> CudaDevice::MakeCopyEngine() {
  return std::make_unique<CudaCopyEngine>(*this);
}

Path CudaDevice::PathTo(const std::array<std::byte, 16>& hardware) const {
  if (hardware == uuid_) return Path::kSameDevice;
  int gpus = 0;
  driver_.cuDeviceGetCount(&gpus);
  for (int gpu = 0; gpu < gpus; ++gpu) {
    abi::Uuid uuid;
    if (driver_.cuDeviceGetUuid_v2(&uuid, gpu) != abi::kSuccess ||
        !std::equal(hardware.begin(), hardware.end(), std::begin(uuid.bytes))) {
      continue;
    }
    // Atomic operations go over NVLink, not over PCIe.
    int atomics = 0;
    driver_.cuDeviceGetP2PAttribute(&atomics, abi::kP2pNativeAtomics, device_, gpu);
    return atomics != 0 ? Path::kNvlinkIpc : Path::kPeerIpc;
  }
  return Path::kPeerIpc;  // one that this process does not see
}

Path CudaDevice::PathOf(const memory::CopyPiece& piece, Path mapped) const {
  // The driver takes 0.15 us to say what this object knows of its own.
  const auto reach = [&](const std::byte* pointer) {
    const auto address = reinterpret_cast<abi::Address>(pointer);
    const bool own = OwnRange(address, false).end != 0;
    return own ? Reach::kDevice : ReachOf(driver_, address, piece.bytes);
  };
  const Reach to = reach(piece.to), from = reach(piece.from);
  if (to == Reach::kDevice && from == Reach::kDevice) return mapped;
  // Managed memory is where it was touched last.
  const bool staged = to == Reach::kPageable || from == Reach::kPageable;
  return staged ? Path::kPinnedStaging : Path::kDeviceCopy;
}

bool CudaDevice::Wanders(const void* address) const {
  const absl::StatusOr<PointerFacts> facts =
      FactsOf(driver_, reinterpret_cast<abi::Address>(address));
  return facts.ok() && facts->kind == MemoryKind::kManaged;
}

CudaDevice::Range CudaDevice::OwnRange(abi::Address address, bool write) const {
  absl::MutexLock lock(&mutex_);
  auto own = own_.upper_bound(address);
  if (own == own_.begin() || address - (--own)->first >= own->second.bytes) return {};
  if (write && own->second.made != Made::kAllocated) return {};
  return {own->first, own->first + own->second.bytes};
}

CudaDevice::Range CudaDevice::KernelRange(abi::Address address, bool write) const {
  if (OwnRange(address, false).end != 0) return OwnRange(address, write);
  const absl::StatusOr<PointerFacts> facts = FactsOf(driver_, address);
  if (!facts.ok() || facts->kind == MemoryKind::kManaged) return {};
  if (facts->kind == MemoryKind::kVirtual) {
    abi::Location here;
    here.id = device_;
    unsigned long long access = 0;
    const abi::Result r = driver_.cuMemGetAccess(&access, &here, address);
    const bool reads = access == abi::kAccessRead || access == abi::kAccessReadWrite;
    if (r != abi::kSuccess || !(write ? access == abi::kAccessReadWrite : reads)) return {};
  } else if (facts->ordinal != device_) {
    return {};
  }
  return {facts->base, facts->base + facts->bytes};
}

absl::Status CudaDevice::Probe() {
  if (absl::Status known = health(); !known.ok() || !context_.taken()) return known;
  const InContext in(driver_, *context_.Get());
  absl::MutexLock lock(&probe_mutex_);
  abi::Result r = in.result();
  if (r == abi::kSuccess && probe_ == nullptr) {
    r = driver_.cuStreamCreateWithPriority(&probe_, abi::kStreamNonBlocking, 0);
  }
  // Errors of all that runs in the context come out of any call in it.
  if (r == abi::kSuccess) r = driver_.cuStreamQuery(probe_);
  return IsSticky(r) ? Note(r, "work of this process") : absl::OkStatus();
}

absl::StatusOr<memory::ReadinessRef> CudaDevice::Record(memory::StreamOrder order) {
  absl::StatusOr<abi::Context> context = context_.Get();
  if (!context.ok()) return context.status();
  const auto stream = static_cast<abi::Stream>(order.stream);
  abi::Context of_stream = *context;
  if (!IsDefault(stream)) {
    const abi::Result r = driver_.cuStreamGetCtx(stream, &of_stream);
    if (r != abi::kSuccess) return Note(r, "finding a stream's context");
  }
  const InContext in(driver_, of_stream);
  if (in.result() != abi::kSuccess) return Note(in.result(), "entering its context");
  if (const abi::Result r = MayQueue(driver_, stream); r != abi::kSuccess) {
    return Note(r, "ordering after a stream");
  }
  absl::StatusOr<ReadyWord> word = words_->Take();
  if (!word.ok()) return word.status();
  const abi::Result r = driver_.cuStreamWriteValue32_v2(stream, word->address, 1, 0);
  if (r != abi::kSuccess) {
    words_->GiveUnused(*word);
    return Note(r, "ordering after a stream");
  }
  return std::make_shared<WordReadiness>(*this, words_, *word);
}

absl::Status CudaDevice::CheckOrder(memory::StreamOrder order) const {
  if (!IsPerThread(static_cast<abi::Stream>(order.stream))) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the per-thread default stream means another stream on each thread: make a stream");
}

void CudaDevice::Remember(abi::Address address, Made made, size_t bytes) {
  absl::MutexLock lock(&mutex_);
  Own& own = own_[address];
  own = {made, bytes, own.count + 1};
}

CudaDevice::Own CudaDevice::Forget(abi::Address address) {
  absl::MutexLock lock(&mutex_);
  const auto it = own_.find(address);
  VERBENA_CHECK(it != own_.end(), "0x", absl::Hex(address), " was not made by cuda:", ordinal_);
  const Own own = it->second;
  if (--it->second.count == 0) own_.erase(it);
  return own;
}

}  // namespace verbena::gpu
