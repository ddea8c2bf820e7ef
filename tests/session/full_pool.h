#pragma once
// A pool without room, and a growth thread that makes none until it is told to.
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "rpc/memory/pool.h"
#include "rpc/reactor/service_threads.h"

namespace verbena::session::testing {

class FullPool {
 public:
  // The growth thread waits until `go_on`, which it asks, is true.
  explicit FullPool(std::function<bool()> go_on) {
    std::atomic<bool> begun{false};
    reactor::PostGrowth([&begun, this, wait = std::move(go_on)] {
      begun = true;
      while (!wait()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      over_ = true;
    });
    while (!begun) std::this_thread::yield();
    for (size_t bytes = size_t{32} << 20; bytes >= 64; bytes /= 2) {
      while (memory::Block block = memory::TryAllocateBlock(bytes)) {
        taken_.push_back(std::move(block));
      }
    }
  }
  ~FullPool() {
    while (!over_) std::this_thread::yield();
  }

 private:
  std::atomic<bool> over_{false};
  std::vector<memory::Block> taken_;
};

}  // namespace verbena::session::testing
