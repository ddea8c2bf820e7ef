#include "tests/contract/plain_device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <deque>

#include "absl/status/status.h"
#include "rpc/base/check.h"
#include "rpc/memory/registrars.h"

namespace verbena::contract {
namespace {

constexpr size_t kSliceBytes = 4096;

class PlainCopies final : public memory::CopyEngine {
 public:
  bool Copy(uint64_t tag, absl::Span<const memory::CopyPiece> pieces,
            memory::StreamOrder) override {
    if (queue_.size() >= 64) return false;
    queue_.push_back({tag, {pieces.begin(), pieces.end()}});
    return true;
  }

  bool Poll(size_t budget, absl::FunctionRef<bool()> yield,
            absl::FunctionRef<void(uint64_t, bool)> done) override {
    while (!queue_.empty() && budget > 0) {
      Job& job = queue_.front();
      while (!job.pieces.empty() && budget > 0) {
        memory::CopyPiece& piece = job.pieces.front();
        const size_t n = std::min({piece.bytes, budget, kSliceBytes});
        memcpy(piece.to, piece.from, n);
        piece = {piece.to + n, piece.from + n, piece.bytes - n};
        budget -= n;
        if (piece.bytes == 0) job.pieces.pop_front();
        if (yield()) return true;
      }
      if (!job.pieces.empty()) break;
      const uint64_t tag = job.tag;
      queue_.pop_front();
      done(tag, true);
    }
    return !queue_.empty();
  }

 private:
  struct Job {
    uint64_t tag;
    std::deque<memory::CopyPiece> pieces;
  };
  std::deque<Job> queue_;
};

class Plain final : public memory::Device {
 public:
  ::verbena::Device where() const override { return ::verbena::Device::Host(); }
  bool host_accessible() const override { return true; }
  absl::StatusOr<std::vector<memory::Extent>> Describe(const void*, size_t) override {
    return absl::UnimplementedError("plain device: describe");
  }
  absl::StatusOr<memory::Export> ExportTo(const memory::Extent&, memory::ExportWay) override {
    return absl::UnimplementedError("plain device: export");
  }
  absl::StatusOr<memory::Mapping> Import(memory::Export from_peer) override {
    void* base = mmap(nullptr, from_peer.bytes, PROT_READ, MAP_SHARED, from_peer.fd,
                      static_cast<off_t>(from_peer.offset));
    close(from_peer.fd);
    if (base == MAP_FAILED) return absl::ResourceExhaustedError("plain device: mmap failed");
    return memory::Mapping{this, static_cast<std::byte*>(base), from_peer.bytes};
  }
  void Release(const memory::Mapping& mapping) override { munmap(mapping.base, mapping.bytes); }
  absl::StatusOr<memory::Extent> Allocate(size_t) override {
    return absl::UnimplementedError("plain device: allocate");
  }
  void Free(const memory::Extent&) override {}
  std::unique_ptr<memory::CopyEngine> MakeCopyEngine() override {
    return std::make_unique<PlainCopies>();
  }
};

uint64_t NextBufferId() {
  static std::atomic<uint64_t> next{uint64_t{1} << 40};
  return next.fetch_add(1);
}

class MemfdRegion final : public memory::Region {
 public:
  MemfdRegion(memory::Extent extent, int fd)
      : Region(PlainDevice(), extent, memory::RegionKind::kSlab, fd, 0) {}
  ~MemfdRegion() override {
    // Refused where a test ends with leases of it: its fabric keeps what it registered.
    memory::UnregisterRegion(buffer_id()).IgnoreError();
    munmap(base(), bytes());
    close(fd());
  }
};

class HeapRegion final : public memory::Region {
 public:
  explicit HeapRegion(memory::Extent extent)
      : Region(PlainDevice(), extent, memory::RegionKind::kForeign, -1, 0) {}
  ~HeapRegion() override { free(base()); }
};

}  // namespace

memory::Device& PlainDevice() {
  static Plain device;
  return device;
}

memory::RegionRef MakeMemfdRegion(size_t bytes) {
  const int fd = memfd_create("verbena-test-slab", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  VERBENA_CHECK(fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0);
  VERBENA_CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  VERBENA_CHECK(base != MAP_FAILED);
  const memory::Extent extent{static_cast<std::byte*>(base), bytes, NextBufferId()};
  auto region = std::make_shared<MemfdRegion>(extent, fd);
  constexpr uint8_t kUses =
      static_cast<uint8_t>(memory::Use::kReadInto) | static_cast<uint8_t>(memory::Use::kLeasable);
  memory::RegisterWhereTaken(region, kUses);
  return region;
}

memory::RegionRef MakeHeapRegion(size_t bytes) {
  auto* base = static_cast<std::byte*>(aligned_alloc(64, (bytes + 63) / 64 * 64));
  VERBENA_CHECK(base != nullptr);
  return std::make_shared<HeapRegion>(memory::Extent{base, bytes, NextBufferId()});
}

}  // namespace verbena::contract
