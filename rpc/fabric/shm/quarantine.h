#pragma once
// shm::Quarantine: device memory of links that have ended while streams of their peers' still
// copied from it. Nobody can take such a copy back, and a stream may stand for as long as its
// process likes; so the link ends, and what was leased is kept from being freed, or given to
// others, until the peer has dropped its hold or is dead.
//
// Reactor thread only.
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rpc/memory/region.h"

namespace verbena::fabric::shm {

struct Link;

// A lease that a peer's stream holds, by its place and its word in this side's table.
struct HeldLease {
  uint32_t entry = 0;
  uint64_t word = 0;
  memory::RegionRef region;
};

class Quarantine {
 public:
  Quarantine() = default;
  // What is held then is kept as long as this process lives.
  ~Quarantine();
  Quarantine(const Quarantine&) = delete;
  Quarantine& operator=(const Quarantine&) = delete;

  bool empty() const { return ended_.empty(); }
  void Add(std::unique_ptr<Link> link, std::vector<HeldLease> held);
  // Lets go of what is not held any more; `gone` takes links of which nothing is. One system call
  // for each link.
  void Look(absl::FunctionRef<void(std::unique_ptr<Link> link)> gone);

 private:
  struct Ended {
    std::unique_ptr<Link> link;
    std::vector<HeldLease> held;
  };
  std::vector<Ended> ended_;
};

}  // namespace verbena::fabric::shm
