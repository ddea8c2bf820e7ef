#pragma once
// Growing: a block of pool memory that is not there yet. The growth thread makes it, and the seat
// hears of it. For whoever finds that TryAllocateBlock has none: nothing in a seat waits for
// memory.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "rpc/memory/region.h"
#include "rpc/reactor/work.h"

namespace verbena::session {

class EngineImpl;

class Growing final : public reactor::Work {
 public:
  using Fill = absl::AnyInvocable<void(std::byte*) &&>;
  using Then = absl::AnyInvocable<void(absl::StatusOr<memory::Block>) &&>;
  // In the seat. `fill`, if given, writes the block on the growth thread; `then` runs in the seat,
  // unless it was abandoned.
  static std::shared_ptr<Growing> Start(EngineImpl& engine, uint64_t bytes, Then then,
                                        Fill fill = nullptr);
  // In the seat. If the block is not being made yet, it is not made at all.
  void Abandon();

 private:
  Growing(uint64_t bytes, Then then, Fill fill);
  void Make();
  void Tell();

  const uint64_t bytes_;
  Then then_;  // in the seat; null: abandoned
  Fill fill_;
  std::atomic<bool> wanted_{true};
  absl::StatusOr<memory::Block> block_;
  std::shared_ptr<Growing> self_;  // while it is in the engine's inbox
};

// Whether the pool has room for `bytes`. If not, the growth thread makes some, or finds that there
// will be none; then `then` runs on the watch thread. For a handshake, whose deadline is longer
// than that of the proof which needs the memory.
bool HasRoom(uint64_t bytes, absl::AnyInvocable<void() &&> then);

}  // namespace verbena::session
