#pragma once
// shm::StageServer: the owner's part of READs of device memory that its reader cannot map: the
// owner's device copies ranges that were asked for (segment.h, Desk) to stages in memory of the
// pools, which the reader maps like any slab; while it copies from one stage, others are filled.
//
// Reactor thread only.
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "rpc/fabric/fabric.h"
#include "rpc/fabric/shm/segment.h"

namespace verbena::fabric::shm {

struct Link;

// Of one stage. Larger, and a READ begins later; smaller, and what it costs to ask is seen: 2 us of
// the 20 that a GPU takes for it.
inline constexpr size_t kStageBytes = 1 << 20;

// An owner's stages of one link, once its peer has asked for some.
struct ServedStages {
  memory::Block block;
  bool making = false;  // it is being made, or shown to the peer
  bool shown = false;
  Error refusal = Error::kOk;                 // what those who wait for them are told
  uint64_t asked = 0;                         // requests that were looked at
  bool again = false;                         // some of them have to wait
  std::array<uint64_t, kStages> sequences{};  // begun last
};

class StageServer {
 public:
  struct Owner {
    // Makes kStages stages without blocking, and calls OnMade.
    virtual void MakeStages(Link& link) = 0;
    // Sends the peer its region, and calls OnShown.
    virtual void ShowStages(Link& link) = 0;
    virtual void Answered(Link& link) = 0;
    virtual Link* LinkOf(LinkId link, uint64_t serial) = 0;

   protected:
    ~Owner() = default;
  };

  explicit StageServer(Owner& owner) : owner_(owner) {}

  // A lease of device memory, by its place and its word in this side's table.
  void Lend(Link& link, LeaseSlot slot, uint32_t entry, uint64_t word,
            const memory::RegionRef& region, const std::byte* data, size_t bytes);
  // It has ended: nothing more is copied from it. Busy says when nothing is any more.
  void End(LeaseSlot slot);
  void EndAll(const Link& link);
  bool Busy(LeaseSlot slot) const;

  // Whether the peer wants something that was not looked at.
  static bool Asked(const Link& link);
  void Serve(Link& link);
  void OnMade(Link& link, memory::Block block);
  void OnShown(Link& link, bool ok);

  bool busy() const { return !jobs_.empty(); }
  // Copies go on. True: some ended.
  bool Work(size_t budget, absl::FunctionRef<bool()> yield);

 private:
  struct Lent {
    LeaseSlot slot;
    LinkId link = LinkId::kNone;
    uint32_t entry = 0;
    uint64_t word = 0;
    memory::RegionRef region;
    const std::byte* data = nullptr;
    size_t bytes = 0;
  };
  struct Job {
    LinkId link = LinkId::kNone;
    uint64_t link_serial = 0;
    uint32_t stage = 0;
    uint64_t sequence = 0;
    LeaseSlot lease;
    memory::RegionRef region;
  };

  // Answers all that wait for stages: there are none now.
  void Refuse(Link& link, Error error);
  // What it asks for; null and `error` where it may not be had.
  const Lent* Find(const Link& link, const StageRequest& request, uint64_t& offset, size_t& bytes,
                   Error& error) const;
  // False: the device's queue is full.
  bool Begin(Link& link, uint32_t stage, uint64_t sequence);
  void Answer(Link& link, uint32_t stage, uint64_t sequence, Error error);
  void OnCopied(uint64_t tag, bool ok);

  Owner& owner_;
  std::vector<Lent> lent_;
  std::map<memory::Device*, std::unique_ptr<memory::CopyEngine>> engines_;
  std::map<uint64_t, Job> jobs_;
  uint64_t next_ = 1;
};

}  // namespace verbena::fabric::shm
