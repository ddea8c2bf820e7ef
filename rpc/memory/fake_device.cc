#include "rpc/memory/fake_device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <iterator>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/base/limits.h"
#include "rpc/memory/fake_stream.h"
#include "rpc/memory/host_copy_engine.h"
#include "rpc/memory/known_regions.h"

namespace verbena::memory {
namespace {

constexpr size_t kPageBytes = 4096;
// Allocations whose addresses nothing else gets after they were freed, so that a copy to or from
// them is a fault.
constexpr size_t kFreedMax = 64;

absl::Status SystemError(absl::string_view what) {
  return absl::ResourceExhaustedError(
      absl::StrCat("fake device: ", what, ": ", std::strerror(errno)));
}

class FlagReadiness final : public Readiness {
 public:
  FlagReadiness(const FakeDevice& device, FakeStream::Flag flag)
      : device_(device), flag_(std::move(flag)) {}
  bool ready() const override { return flag_->load(std::memory_order_acquire); }
  absl::Status Look() const override { return device_.health(); }

 private:
  const FakeDevice& device_;
  const FakeStream::Flag flag_;
};

// Translates device addresses, then copies as the host does, each copy when its stream and the test
// let it. A range outside every extent is the copy's fault.
class FakeCopyEngine final : public CopyEngine {
 public:
  explicit FakeCopyEngine(FakeDevice& device) : device_(device) {}
  ~FakeCopyEngine() override { device_.CountWaiting(-static_cast<int64_t>(queued_.size())); }

  bool Copy(uint64_t tag, absl::Span<const CopyPiece> pieces, StreamOrder order) override {
    if (queued_.size() + streams_.size() >= limits::kCopiesInFlightMax) return false;
    device_.CountWaiting(1);
    Queued& queued = queued_.emplace_back();
    queued.tag = tag;
    queued.pieces.assign(pieces.begin(), pieces.end());
    auto* const stream = static_cast<FakeStream*>(order.stream);
    queued.refused = stream != nullptr && stream->captured();
    if (stream == nullptr || queued.refused) return true;
    queued.stream = stream;
    queued.begin = queued.stream->Record();
    queued.end = std::make_shared<std::atomic<bool>>(false);
    queued.stream->WaitFor(queued.end);
    return true;
  }
  bool Poll(size_t budget_bytes, absl::FunctionRef<bool()> yield,
            absl::FunctionRef<void(uint64_t, bool)> done) override {
    const bool broken = !device_.health().ok();
    while (!queued_.empty()) {
      Queued& front = queued_.front();
      if (!broken && front.begin != nullptr && !front.begin->load(std::memory_order_acquire)) break;
      if (!broken && !device_.TakeCopy()) break;
      // What was freed since it was queued is a fault too.
      const bool fails = broken || front.refused;
      for (CopyPiece& piece : front.pieces) {
        piece.to = fails ? nullptr : AliasOf(piece.to, piece.bytes);
        piece.from = fails ? nullptr : AliasOf(piece.from, piece.bytes);
      }
      host_.Copy(front.tag, front.pieces, {});
      streams_.push_back({front.stream, front.end});
      queued_.pop_front();
      device_.CountWaiting(-1);
    }
    const bool left = host_.Poll(budget_bytes, yield, [&](uint64_t tag, bool ok) {
      const auto [stream, end] = streams_.front();
      streams_.pop_front();
      if (stream != nullptr && ok) {
        end->store(true, std::memory_order_release);
        stream->Advance();
      }
      done(tag, ok);
    });
    return left || !queued_.empty();
  }
  bool Ordered(uint64_t tag) const override {
    return std::any_of(queued_.begin(), queued_.end(), [tag](const Queued& queued) {
      return queued.tag == tag && queued.stream != nullptr;
    });
  }

 private:
  struct Queued {
    uint64_t tag = 0;
    absl::InlinedVector<CopyPiece, 4> pieces;
    FakeStream* stream = nullptr;
    bool refused = false;
    FakeStream::Flag begin, end;
  };
  struct Begun {
    FakeStream* stream;
    FakeStream::Flag end;
  };
  // Its own device's, or another fake's: they reach each other.
  std::byte* AliasOf(const std::byte* address, size_t bytes) {
    std::byte* alias = device_.Alias(address, bytes);
    for (int i = 0; alias == address && i < kFakesMax; ++i) {
      const absl::StatusOr<Device*> other = FindDevice(::verbena::Device::Fake(i));
      if (other.ok()) alias = static_cast<FakeDevice&>(**other).Alias(address, bytes);
    }
    return alias;
  }

  static constexpr int kFakesMax = 64;  // that a test installs
  FakeDevice& device_;
  HostCopyEngine host_;
  std::deque<Queued> queued_;  // not begun
  std::deque<Begun> streams_;  // of those that have
};

}  // namespace

FakeDevice& FakeDevice::Install(int index) {
  static absl::Mutex mutex;
  absl::MutexLock lock(&mutex);
  absl::StatusOr<Device*> there = FindDevice(::verbena::Device::Fake(index));
  if (there.ok()) return static_cast<FakeDevice&>(**there);
  auto* const device = new FakeDevice(index);
  RegisterDevice(std::unique_ptr<Device>(device));
  return *device;
}

absl::StatusOr<Extent> FakeDevice::Allocate(size_t bytes) {
  {
    absl::MutexLock lock(&mutex_);
    if (!no_memory_.ok()) return no_memory_;
    if (const size_t used = BytesNow(); used > bytes_max_ || bytes > bytes_max_ - used) {
      return absl::ResourceExhaustedError(absl::StrCat("fake device: no ", bytes, " bytes left"));
    }
  }
  const int fd = memfd_create("verbena-fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return SystemError("memfd_create");
  const size_t mapped = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (bytes == 0 || bytes > SIZE_MAX / 2 || ftruncate(fd, static_cast<off_t>(mapped)) != 0) {
    close(fd);
    return SystemError(absl::StrCat("allocating ", bytes, " bytes"));
  }
  fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  const uint64_t buffer_id = NextBufferId();
  absl::StatusOr<std::byte*> base = Map(fd, 0, bytes, true, buffer_id);
  if (!base.ok()) return base.status();
  return Extent{*base, bytes, buffer_id};
}

void FakeDevice::Free(const Extent& extent) { Unmap(extent.base); }

absl::StatusOr<std::byte*> FakeDevice::Map(int fd, uint64_t offset, size_t bytes, bool writable,
                                           uint64_t buffer_id) {
  const size_t mapped = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  void* const alias = mmap(nullptr, mapped, writable ? PROT_READ | PROT_WRITE : PROT_READ,
                           MAP_SHARED, fd, static_cast<off_t>(offset));
  void* const visible =
      mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (alias == MAP_FAILED || visible == MAP_FAILED) {
    const absl::Status status = SystemError(absl::StrCat("mapping ", bytes, " bytes"));
    if (alias != MAP_FAILED) munmap(alias, mapped);
    if (visible != MAP_FAILED) munmap(visible, mapped);
    close(fd);
    return status;
  }
  absl::MutexLock lock(&mutex_);
  memories_[reinterpret_cast<uintptr_t>(visible)] =
      Memory{bytes, mapped, static_cast<std::byte*>(alias), fd, buffer_id};
  return static_cast<std::byte*>(visible);
}

void FakeDevice::Unmap(std::byte* base) {
  absl::MutexLock lock(&mutex_);
  const auto it = memories_.find(reinterpret_cast<uintptr_t>(base));
  VERBENA_CHECK(it != memories_.end(), "not memory of this fake device");
  freed_.emplace_back(base, it->second.mapped);
  if (freed_.size() > kFreedMax) {
    munmap(freed_.front().first, freed_.front().second);
    freed_.pop_front();
  }
  munmap(it->second.alias, it->second.mapped);
  close(it->second.fd);
  memories_.erase(it);
}

absl::StatusOr<std::vector<Extent>> FakeDevice::Describe(const void* pointer, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  absl::MutexLock lock(&mutex_);
  auto it = memories_.upper_bound(address);
  if (it != memories_.begin()) {
    --it;
    const uintptr_t offset = address - it->first;
    if (offset <= it->second.bytes && bytes <= it->second.bytes - offset) {
      const Memory& memory = it->second;
      auto* const base = reinterpret_cast<std::byte*>(it->first);
      if (memory.split == 0) return std::vector<Extent>{{base, memory.bytes, memory.buffer_id}};
      const Extent second{base + memory.split, memory.bytes - memory.split, memory.second_id};
      std::vector<Extent> extents;
      if (offset < memory.split) extents.push_back({base, memory.split, memory.buffer_id});
      if (offset + bytes > memory.split) extents.push_back(second);
      return extents;
    }
  }
  return absl::NotFoundError(
      absl::StrCat(bytes, " bytes at 0x", absl::Hex(address), " are not of fake:", where_.index()));
}

absl::StatusOr<Export> FakeDevice::ExportTo(const Extent& extent, ExportWay way) {
  if (way == ExportWay::kDmaBuf) return ExportDmaBuf(extent);
  if (way != ExportWay::kMemfd && way != ExportWay::kHostPeer)
    return absl::UnimplementedError("a fake device exports memfds only");
  absl::MutexLock lock(&mutex_);
  uint64_t offset = 0;
  const Memory* const memory = PartOf(extent, offset);
  if (memory == nullptr) return absl::NotFoundError("no such extent on the fake device");
  if (!no_exports_.ok()) return no_exports_;
  Export e;
  e.offset = offset;
  e.bytes = extent.bytes;
  e.buffer_id = extent.buffer_id;
  e.hardware = hardware();
  e.fd = fcntl(memory->fd, F_DUPFD_CLOEXEC, 0);
  if (e.fd < 0) return SystemError("duplicating a descriptor");
  return e;
}

const FakeDevice::Memory* FakeDevice::PartOf(const Extent& extent, uint64_t& offset) const {
  const auto address = reinterpret_cast<uintptr_t>(extent.base);
  const auto it = memories_.upper_bound(address);
  if (it == memories_.begin()) return nullptr;
  const auto& [base, memory] = *std::prev(it);
  offset = address - base;
  const bool second = memory.split != 0 && offset == memory.split;
  const uint64_t id = second ? memory.second_id : memory.buffer_id;
  return (second || offset == 0) && extent.buffer_id == id ? &memory : nullptr;
}

// Of a part of an allocation too, from the page on which it begins.
absl::StatusOr<Export> FakeDevice::ExportDmaBuf(const Extent& extent) {
  absl::MutexLock lock(&mutex_);
  if (!nic_facts_.dma_buf) return absl::UnimplementedError("this fake device exports no dma-buf");
  if (!no_exports_.ok()) return no_exports_;
  uint64_t offset = 0;
  const Memory* const memory = PartOf(extent, offset);
  if (memory == nullptr) return absl::NotFoundError("no such extent on the fake device");
  Export e;
  e.way = ExportWay::kDmaBuf;
  e.bytes = extent.bytes;
  e.offset = offset;
  e.buffer_id = extent.buffer_id;
  e.hardware = hardware();
  e.fd = fcntl(memory->fd, F_DUPFD_CLOEXEC, 0);
  if (e.fd < 0) return SystemError("duplicating a descriptor");
  return e;
}

NicFacts FakeDevice::nic_facts() const {
  absl::MutexLock lock(&mutex_);
  return nic_facts_;
}

void FakeDevice::SetNicFacts(const NicFacts& facts) {
  absl::MutexLock lock(&mutex_);
  nic_facts_ = facts;
}

absl::Status FakeDevice::FlushNicWrites() {
  ++flushes_;
  return health();
}

absl::StatusOr<Mapping> FakeDevice::Import(Export from_peer) {
  struct stat file {};
  const bool usable = from_peer.way == ExportWay::kMemfd && from_peer.bytes > 0 &&
                      from_peer.offset % kPageBytes == 0 &&
                      (fcntl(from_peer.fd, F_GET_SEALS) & F_SEAL_SHRINK) != 0 &&
                      fstat(from_peer.fd, &file) == 0 &&
                      from_peer.offset <= static_cast<uint64_t>(file.st_size) &&
                      from_peer.bytes <= static_cast<uint64_t>(file.st_size) - from_peer.offset;
  if (!usable) {
    if (from_peer.fd >= 0) close(from_peer.fd);
    return absl::FailedPreconditionError("fake device: not a sealed memfd that holds the extent");
  }
  absl::Status refused;
  {
    absl::MutexLock lock(&mutex_);
    refused = no_imports_;
  }
  if (!refused.ok()) {
    close(from_peer.fd);
    return refused;
  }
  absl::StatusOr<std::byte*> base =
      Map(from_peer.fd, from_peer.offset, from_peer.bytes, false, NextBufferId());
  if (!base.ok()) return base.status();
  const bool same = from_peer.hardware == hardware();
  return Mapping{this, *base, from_peer.bytes, same ? Path::kSameDevice : Path::kPeerIpc};
}

void FakeDevice::Release(const Mapping& mapping) { Unmap(mapping.base); }

std::unique_ptr<CopyEngine> FakeDevice::MakeCopyEngine() {
  return std::make_unique<FakeCopyEngine>(*this);
}

absl::StatusOr<ReadinessRef> FakeDevice::Record(StreamOrder order) {
  if (absl::Status s = health(); !s.ok()) return s;
  if (static_cast<FakeStream*>(order.stream)->captured()) {
    return absl::FailedPreconditionError("fake device: the stream is being captured");
  }
  return std::make_shared<FlagReadiness>(*this, static_cast<FakeStream*>(order.stream)->Record());
}

absl::Status FakeDevice::CheckOrder(StreamOrder order) const {
  if (reinterpret_cast<uintptr_t>(order.stream) != 2) return absl::OkStatus();
  return absl::InvalidArgumentError("a stream that is another on each thread");
}

absl::Status FakeDevice::health() const {
  absl::MutexLock lock(&mutex_);
  return health_;
}

Path FakeDevice::PathOf(const CopyPiece& piece, Path mapped) const {
  auto& self = const_cast<FakeDevice&>(*this);
  const bool devices = self.Alias(piece.to, piece.bytes) != piece.to &&
                       self.Alias(piece.from, piece.bytes) != piece.from;
  return devices ? mapped : Path::kDeviceCopy;
}

void FakeDevice::Split(std::byte* base, size_t at) {
  absl::MutexLock lock(&mutex_);
  Memory& memory = memories_.at(reinterpret_cast<uintptr_t>(base));
  memory.split = at;
  memory.second_id = NextBufferId();
}

void FakeDevice::RefuseAllocations(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  no_memory_ = why;
}

void FakeDevice::LimitMemory(size_t bytes) {
  absl::MutexLock lock(&mutex_);
  bytes_max_ = bytes;
}

size_t FakeDevice::live_bytes() {
  absl::MutexLock lock(&mutex_);
  return BytesNow();
}

size_t FakeDevice::BytesNow() const {
  size_t bytes = 0;
  for (const auto& [base, memory] : memories_) bytes += memory.bytes;
  return bytes;
}

void FakeDevice::Renumber(std::byte* base) {
  absl::MutexLock lock(&mutex_);
  memories_.at(reinterpret_cast<uintptr_t>(base)).buffer_id = NextBufferId();
}

void FakeDevice::RefuseExports(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  no_exports_ = why;
}

void FakeDevice::RefuseImports(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  no_imports_ = why;
}

void FakeDevice::Break(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  health_ = why;
}

bool FakeDevice::TakeCopy() {
  int64_t left = copies_.load();
  while (left > 0 && !copies_.compare_exchange_weak(left, left - 1)) {
  }
  return left != 0;
}

std::byte* FakeDevice::Alias(const std::byte* address, size_t bytes) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  absl::MutexLock lock(&mutex_);
  auto it = memories_.upper_bound(at);
  if (it != memories_.begin()) {
    --it;
    const uintptr_t offset = at - it->first;
    if (offset < it->second.mapped) {
      return bytes <= it->second.bytes - std::min(offset, it->second.bytes)
                 ? it->second.alias + offset
                 : nullptr;
    }
  }
  for (const auto& [base, freed] : freed_) {
    if (address >= base && address < base + freed) return nullptr;
  }
  return const_cast<std::byte*>(address);
}

void FakeDevice::Write(std::byte* to, const void* from, size_t bytes) {
  std::byte* const alias = Alias(to, bytes);
  VERBENA_CHECK(alias != nullptr && alias != to, "not memory of this fake device");
  std::memcpy(alias, from, bytes);
}

void FakeDevice::Read(void* to, const std::byte* from, size_t bytes) {
  std::byte* const alias = Alias(from, bytes);
  VERBENA_CHECK(alias != nullptr && alias != from, "not memory of this fake device");
  std::memcpy(to, alias, bytes);
}

size_t FakeDevice::live() {
  absl::MutexLock lock(&mutex_);
  return memories_.size();
}

}  // namespace verbena::memory
