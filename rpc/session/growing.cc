#include "rpc/session/growing.h"

#include <utility>

#include "rpc/memory/pool.h"
#include "rpc/reactor/service_threads.h"
#include "rpc/session/engine_impl.h"

namespace verbena::session {

Growing::Growing(uint64_t bytes, Then then, Fill fill)
    : reactor::Work([](reactor::Work* work) { static_cast<Growing*>(work)->Tell(); }),
      bytes_(bytes),
      then_(std::move(then)),
      fill_(std::move(fill)),
      block_(absl::CancelledError("abandoned")) {}

std::shared_ptr<Growing> Growing::Start(EngineImpl& engine, uint64_t bytes, Then then, Fill fill) {
  std::shared_ptr<Growing> growing(new Growing(bytes, std::move(then), std::move(fill)));
  reactor::PostGrowth([growing, gate = engine.gate()] {
    growing->Make();
    growing->self_ = growing;
    if (!gate->RunInSeat(*growing)) growing->self_.reset();
  });
  return growing;
}

bool HasRoom(uint64_t bytes, absl::AnyInvocable<void() &&> then) {
  if (memory::TryAllocateBlock(bytes)) return true;
  reactor::PostGrowth([bytes, then = std::move(then)]() mutable {
    memory::AllocateBlock(bytes).status().IgnoreError();  // the proof says what is wrong
    reactor::Watch::Get().Post(std::move(then));
  });
  return false;
}

void Growing::Make() {
  if (wanted_.load(std::memory_order_relaxed)) {
    block_ = memory::AllocateBlock(bytes_);
    if (block_.ok() && fill_) std::move(fill_)(block_->data());
  }
  fill_ = nullptr;  // and what it holds
}

void Growing::Tell() {
  const std::shared_ptr<Growing> keep = std::move(self_);
  if (then_) std::exchange(then_, nullptr)(std::move(block_));
}

void Growing::Abandon() {
  then_ = nullptr;
  wanted_.store(false, std::memory_order_relaxed);
}

}  // namespace verbena::session
