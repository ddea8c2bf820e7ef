#pragma once
// tcp::LeaseTable: which memory the peers of this fabric may read. A row is found by the lease's
// slot; its key carries a random word too, so that no peer can guess a lease that it was not given.
// Revocation is the row's end: a chunk that is being sent looks at its row before each byte.
// Reactor thread only.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "rpc/fabric/fabric.h"
#include "rpc/fabric/tcp/bulk_wire.h"

namespace verbena::fabric::tcp {

class LeaseTable {
 public:
  struct Row {
    LeaseSlot slot;
    uint64_t secret = 0;
    LinkId link = LinkId::kNone;
    Lane lane;
    memory::RegionRef region;
    const std::byte* data = nullptr;
    size_t bytes = 0;
    bool live = false;
    uint32_t copies = 0;  // device copies that read this memory now
    bool revoking = false;
  };

  RemoteKey Add(LeaseSlot slot, LinkId link, Lane lane, const memory::RegionRef& region,
                const std::byte* data, size_t bytes);
  // What a request on that lane may read; null and `error` if nothing.
  const Row* Find(const Request& request, LinkId link, Lane lane, Error& error) const;
  bool Live(LeaseSlot slot) const;

  // Ends the row. True: nothing reads its memory any more; false: a device copy does, and EndCopy
  // says when it has ended.
  bool Revoke(LeaseSlot slot);
  // Ends every row of the link, or of one of its lanes. Revoke is still owed for each.
  void Void(LinkId link, const Lane* lane);

  void BeginCopy(LeaseSlot slot);
  // True: that was the last copy, and a Revoke waits to be answered.
  bool EndCopy(LeaseSlot slot);

 private:
  static void End(Row& row);
  Row* RowOf(LeaseSlot slot);
  const Row* RowOf(LeaseSlot slot) const;
  uint64_t Random();

  std::vector<Row> rows_;  // by LeaseSlot::index
  std::vector<uint64_t> random_;
};

}  // namespace verbena::fabric::tcp
