#pragma once
// What the setup thread tells a fabric's reactor. Jobs share it, so a fabric may end before its
// last job does.
#include <atomic>
#include <mutex>
#include <vector>

#include "rpc/fabric/fabric.h"
#include "rpc/fabric/shm/side_channel.h"

namespace verbena::fabric::shm {

struct JobResult {
  enum class Kind : uint8_t { kExported, kImported, kWithdrawn, kMadeStages };
  Kind kind = Kind::kExported;
  LinkId link = LinkId::kNone;
  uint64_t link_serial = 0;  // link numbers are used again, these are not
  uint64_t buffer = 0;       // kExported, kWithdrawn
  absl::Status status;
  Taken taken;                           // kImported
  std::shared_ptr<memory::Block> block;  // kMadeStages; null: there is no memory
};

class Inbox {
 public:
  Inbox();
  ~Inbox();
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  // Any thread.
  void Push(JobResult result);
  // Reactor thread only.
  bool any() const { return any_.load(std::memory_order_relaxed); }
  std::vector<JobResult> Take();
  // The eventfd that peers ring; they have it too (bell.h).
  int bell() const { return bell_; }
  // The one that Push rings, which nobody else has. It is never read: watch it for edges.
  int own_bell() const { return own_bell_; }

 private:
  int bell_ = -1;
  int own_bell_ = -1;
  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::vector<JobResult> results_;
};

}  // namespace verbena::fabric::shm
