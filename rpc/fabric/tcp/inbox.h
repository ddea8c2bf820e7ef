#pragma once
// What other threads tell a tcp fabric: a bulk connection has come, a lane is set up. Sockets in it
// are owned; those that nobody takes are closed.
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "rpc/base/ids.h"
#include "rpc/fabric/tcp/bulk_wire.h"

namespace verbena::fabric::tcp {

struct LaneNews {
  LinkId link = LinkId::kNone;
  uint64_t link_serial = 0;
  Lane lane;
  bool completed = false;  // CompleteLane is through; else only the connection has come
  int fd = -1;             // the connection, or -1
  Token greeting{};        // what goes out on it first; zeros: nothing
};

class Inbox {
 public:
  Inbox();
  ~Inbox();
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  // Readable when something came since the last Take.
  int bell() const { return bell_; }
  bool any() const { return any_.load(std::memory_order_acquire); }
  // Any thread.
  void Post(const LaneNews& news);
  // Reactor thread only.
  std::vector<LaneNews> Take();
  // The fabric is gone: what comes from now on is closed at once. Any thread.
  void Close();

 private:
  const int bell_;
  std::atomic<bool> any_{false};
  std::mutex mutex_;
  bool closed_ = false;
  std::vector<LaneNews> news_;
};

}  // namespace verbena::fabric::tcp
