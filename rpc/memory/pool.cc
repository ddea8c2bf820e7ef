#include "rpc/memory/pool.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/base/log.h"
#include "rpc/memory/helpers.h"
#include "rpc/memory/known_regions.h"
#include "rpc/memory/machine.h"
#include "rpc/memory/no_growth.h"
#include "rpc/memory/registrars.h"

namespace verbena::memory {

// A block with a slab of its own.
class SlabPool::Large final : public BlockOwner {
 public:
  Large(SlabPool& pool, std::shared_ptr<Slab> slab) : pool_(pool), slab_(std::move(slab)) {}
  void Free(std::byte*, size_t) noexcept override { pool_.GiveLarge(*this); }
  const std::shared_ptr<Slab>& slab() const { return slab_; }
  uint64_t bytes() const { return slab_->bytes(); }

 private:
  SlabPool& pool_;
  const std::shared_ptr<Slab> slab_;
};

// One thread makes slabs at a time, so that two that need room do not both make it. Only the setup
// thread does not wait for its turn: whoever has it may be waiting for the setup thread.
class SlabPool::Turn {
 public:
  explicit Turn(SlabPool& pool) : pool_(pool) {
    absl::MutexLock lock(&pool_.mutex_);
    if (!OnSetup()) {
      pool_.mutex_.Await(absl::Condition(
          +[](int* growing) { return *growing == 0; }, &pool_.growing_));
    }
    ++pool_.growing_;
  }
  ~Turn() {
    absl::MutexLock lock(&pool_.mutex_);
    --pool_.growing_;
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  SlabPool& pool_;
};

namespace {

PoolOptions WithDefaults(PoolOptions options) {
  if (options.bytes_max == 0) options.bytes_max = MachineMemoryBytes() / 2;
  options.first_slab_bytes =
      std::max<uint64_t>(std::bit_ceil(options.first_slab_bytes), Slab::kAlignment);
  options.slab_bytes_max =
      std::max(std::bit_ceil(options.slab_bytes_max), options.first_slab_bytes);
  options.large_bytes = std::min(options.large_bytes, options.slab_bytes_max);
  return options;
}

constexpr uint8_t kAllUses = static_cast<uint8_t>(Use::kFrames) |
                             static_cast<uint8_t>(Use::kReadInto) |
                             static_cast<uint8_t>(Use::kLeasable);

}  // namespace

SlabPool::SlabPool(const PoolOptions& options) : options_(WithDefaults(options)) {}

SlabPool::~SlabPool() {
  RunOnSetup([this] {  // after whatever Unmap left to it
    absl::MutexLock lock(&mutex_);
    VERBENA_CHECK(stats_.used_bytes == 0, stats_.used_bytes, " bytes of a pool are still in use");
    for (const auto& large : kept_) UnregisterRegion(large->slab()->buffer_id()).IgnoreError();
    for (const auto& space : spaces_) UnregisterRegion(space->slab()->buffer_id()).IgnoreError();
    for (const auto& large : kept_) ForgetRegion(*large->slab());
    for (const auto& space : spaces_) ForgetRegion(*space->slab());
  });
}

absl::StatusOr<Block> SlabPool::Allocate(size_t bytes) {
  if (Block block = TryAllocate(bytes)) return block;
  if (NoGrowth::Refuse()) {
    return absl::ResourceExhaustedError(absl::StrCat(bytes, " bytes: the pool would have to grow"));
  }
  absl::StatusOr<Block> block = absl::UnknownError("not run");
  RunOnGrowth([&] { block = Grow(bytes); });
  return block;
}

Block SlabPool::TryAllocate(size_t bytes) {
  absl::MutexLock lock(&mutex_);
  return TryAllocateLocked(bytes);
}

Block SlabPool::TryAllocateLocked(size_t bytes) {
  if (bytes > options_.large_bytes) return TakeKeptLocked(bytes);
  for (const auto& space : spaces_) {
    if (std::byte* const data = space->Allocate(bytes)) {
      stats_.used_bytes += SlabSpace::Rounded(bytes);
      return Block(space->slab(), data, bytes, static_cast<BlockOwner*>(space.get()));
    }
  }
  return Block();
}

Block SlabPool::TakeKeptLocked(size_t bytes) {
  // The tightest fit, and no more than a quarter wasted.
  auto best = kept_.end();
  for (auto it = kept_.begin(); it != kept_.end(); ++it) {
    const uint64_t have = (*it)->bytes();
    const bool fits = have >= bytes && have - bytes <= bytes / 4 + Slab::kAlignment;
    if (fits && (best == kept_.end() || have < (*best)->bytes())) best = it;
  }
  if (best == kept_.end()) return Block();
  in_use_.push_back(std::move(*best));
  kept_.erase(best);
  Large& large = *in_use_.back();
  stats_.kept_bytes -= large.bytes();
  stats_.used_bytes += large.bytes();
  return Block(large.slab(), large.slab()->base(), bytes, static_cast<BlockOwner*>(&large));
}

absl::StatusOr<Block> SlabPool::Grow(size_t bytes) {
  const Turn turn(*this);
  if (Block block = TryAllocate(bytes)) return block;  // another thread grew it meanwhile
  if (bytes <= options_.large_bytes) {
    if (absl::Status s = AddCommonSlab(SlabSpace::Rounded(bytes)); !s.ok()) return s;
    Block block = TryAllocate(bytes);
    // Others may have taken the new slab's room at once.
    if (!block)
      return absl::ResourceExhaustedError(
          absl::StrCat(bytes, " bytes: the pool grew, and is full again"));
    return block;
  }
  absl::StatusOr<std::shared_ptr<Slab>> slab = MakeSlab(bytes);
  if (!slab.ok()) return slab.status();
  auto large = std::make_unique<Large>(*this, *std::move(slab));
  absl::MutexLock lock(&mutex_);
  stats_.used_bytes += large->bytes();
  in_use_.push_back(std::move(large));
  Large& mine = *in_use_.back();
  return Block(mine.slab(), mine.slab()->base(), bytes, static_cast<BlockOwner*>(&mine));
}

absl::Status SlabPool::AddCommonSlab(uint64_t block_bytes) {
  uint64_t step = options_.first_slab_bytes;
  {
    absl::MutexLock lock(&mutex_);
    const size_t doublings = std::min<size_t>(spaces_.size(), 16);
    step = std::min(step << doublings, options_.slab_bytes_max);
    // Near the limit, a smaller slab that still holds the block beats none.
    const uint64_t room = options_.bytes_max - std::min(stats_.slab_bytes, options_.bytes_max);
    while (step > room && step > options_.first_slab_bytes) step /= 2;
  }
  const uint64_t bytes = std::max({step, std::bit_ceil(block_bytes), Slab::kAlignment});
  absl::StatusOr<std::shared_ptr<Slab>> slab = MakeSlab(bytes);
  if (!slab.ok()) return slab.status();
  auto space = std::make_unique<SlabSpace>(*this, *std::move(slab));
  absl::MutexLock lock(&mutex_);
  spaces_.push_back(std::move(space));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Slab>> SlabPool::MakeSlab(uint64_t bytes) {
  constexpr uint64_t kAlignment = Slab::kAlignment;
  if (bytes <= options_.bytes_max) bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  std::vector<std::unique_ptr<Large>> dropped;
  {
    absl::MutexLock lock(&mutex_);
    const uint64_t others = stats_.slab_bytes - stats_.kept_bytes;
    if (bytes > options_.bytes_max || others > options_.bytes_max - bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the pool of node ", std::max(options_.node, 0), " may hold ",
                       options_.bytes_max, " bytes (set_memory_bytes_max), has ", others, " (",
                       stats_.used_bytes, " of them in use), and ", bytes, " more do not fit"));
    }
    const uint64_t may_keep = options_.bytes_max - bytes - others;
    if (stats_.kept_bytes > may_keep) ShrinkKeptLocked(may_keep, dropped);
    stats_.slab_bytes += bytes;
  }
  if (!dropped.empty()) RunOnSetup([&] { Unmap(std::move(dropped)); });
  absl::StatusOr<std::shared_ptr<Slab>> slab = Slab::Create(bytes, options_.node);
  if (slab.ok()) {
    if (absl::Status s = AddKnownRegion(*slab); !s.ok()) slab = std::move(s);
  }
  if (slab.ok()) RunOnSetup([&] { RegisterWhereTaken(*slab, kAllUses); });
  absl::MutexLock lock(&mutex_);
  if (!slab.ok()) {
    stats_.slab_bytes -= bytes;
    return slab.status();
  }
  stats_.slabs_made += 1;
  if ((*slab)->huge_pages()) stats_.huge_bytes += bytes;
  VERBENA_LOG(kInfo, "pool of node ", std::max(options_.node, 0), ": slab of ", bytes >> 20,
              " MiB on ", (*slab)->huge_pages() ? "huge" : "small", " pages; ",
              stats_.slab_bytes >> 20, " MiB in all");
  return slab;
}

absl::Status SlabPool::Reserve(uint64_t bytes) {
  absl::Status status;
  RunOnGrowth([&] { status = ReserveNow(bytes); });
  return status;
}

absl::Status SlabPool::ReserveNow(uint64_t bytes) {
  const Turn turn(*this);
  for (;;) {
    uint64_t free_bytes = 0;
    {
      absl::MutexLock lock(&mutex_);
      for (const auto& space : spaces_) free_bytes += space->free_page_bytes();
    }
    if (free_bytes >= bytes) return absl::OkStatus();
    absl::Status status =
        AddCommonSlab(std::min(std::bit_ceil(bytes - free_bytes), options_.slab_bytes_max));
    if (!status.ok()) return status;
  }
}

void SlabPool::Give(SlabSpace& space, std::byte* data, size_t bytes) noexcept {
  absl::MutexLock lock(&mutex_);
  space.Give(data, bytes);
  stats_.used_bytes -= SlabSpace::Rounded(bytes);
}

void SlabPool::GiveLarge(Large& large) noexcept {
  std::vector<std::unique_ptr<Large>> dropped;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = std::find_if(in_use_.begin(), in_use_.end(),
                                 [&](const auto& l) { return l.get() == &large; });
    VERBENA_CHECK(it != in_use_.end());
    kept_.push_back(std::move(*it));
    in_use_.erase(it);
    stats_.used_bytes -= large.bytes();
    stats_.kept_bytes += large.bytes();
    ShrinkKeptLocked(options_.kept_bytes_max, dropped);
  }
  if (dropped.empty()) return;
  PostToSetup([this, dropped = std::move(dropped)]() mutable { Unmap(std::move(dropped)); });
}

void SlabPool::ShrinkKeptLocked(uint64_t bytes_max, std::vector<std::unique_ptr<Large>>& dropped) {
  while (!kept_.empty() && stats_.kept_bytes > bytes_max) {
    stats_.kept_bytes -= kept_.front()->bytes();
    dropped.push_back(std::move(kept_.front()));
    kept_.erase(kept_.begin());
  }
}

void SlabPool::Unmap(std::vector<std::unique_ptr<Large>> dropped) {
  for (std::unique_ptr<Large>& large : dropped) {
    const absl::Status status = UnregisterRegion(large->slab()->buffer_id());
    const uint64_t bytes = large->bytes();
    if (!status.ok()) {  // some domain still works with it: keep it, the next one over the limit
                         // tries again
      VERBENA_LOG(kDebug, "a free slab of ", bytes, " bytes is kept: ", status.message());
      absl::MutexLock lock(&mutex_);
      kept_.push_back(std::move(large));
      stats_.kept_bytes += bytes;
      continue;
    }
    const bool huge = large->slab()->huge_pages();
    ForgetRegion(*large->slab());
    large.reset();
    absl::MutexLock lock(&mutex_);
    stats_.slab_bytes -= bytes;
    if (huge) stats_.huge_bytes -= bytes;
  }
}

SlabPool::Stats SlabPool::stats() const {
  absl::MutexLock lock(&mutex_);
  return stats_;
}

}  // namespace verbena::memory
