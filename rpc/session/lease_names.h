#pragma once
// session::LeaseNames: which received message of a link a lease of the peer's belongs to, for
// RECALL and LEASE_KEYS, each of which costs the same however many payloads there are, since the
// peer decides both numbers. Both are rare: until the first of them comes, only messages with many
// payloads are in the index.
//
//   if (!names.on()) names.TurnOn([&] { Add whatever there is });
//   LeaseNames::Place place = names.Find(lease);
//
// In the seat.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "rpc/wire/control.h"
#include "rpc/wire/payload_table.h"

namespace verbena::session {

class Arrival;
class PayloadSetImpl;

class LeaseNames {
 public:
  // Who has the payload, one of both; and its entry. All null: nobody.
  struct Place {
    PayloadSetImpl* set = nullptr;
    Arrival* arrival = nullptr;
    wire::PayloadEntry* entry = nullptr;
  };

  bool on() const { return on_; }
  // `add_all` adds everything once more.
  void TurnOn(absl::FunctionRef<void()> add_all);
  // The entries of one message. They stay where they are until Remove. A lease that is named twice,
  // which no honest peer does, is the first's.
  void Add(const Place& owner, absl::Span<wire::PayloadEntry> entries);
  void Remove(absl::Span<wire::PayloadEntry> entries);
  Place Find(uint64_t lease) const;

  // Keys of a lease that nobody knows are kept while the head of some message is READ: it may be in
  // there. At most those of kPayloadsMax leases.
  void HeadBegins() { ++heads_; }
  void HeadEnds();
  void Keep(absl::Span<const wire::LeaseKey> keys, uint32_t generation);
  // Gives them to entries that have become known.
  void GiveKept(absl::Span<wire::PayloadEntry> entries);

 private:
  struct Kept {
    uint32_t generation = 0;
    std::vector<wire::LeaseKey> keys;
  };

  // Messages with at most so many payloads are added when they are looked for. More, and the first
  // look may take long (1,024 messages); fewer, and honest messages cost more.
  static constexpr size_t kFewPayloads = 16;

  bool on_ = false;
  bool turning_on_ = false;
  absl::flat_hash_map<uint64_t, Place> places_;  // by lease
  uint32_t heads_ = 0;
  absl::flat_hash_map<uint64_t, Kept> kept_;
};

// Keys for a rebuilt lane: one for each piece, all naming one lease. Nothing if it is not
// `entry`'s.
void TakeKeys(wire::PayloadEntry& entry, absl::Span<const wire::LeaseKey> keys,
              uint32_t generation);

}  // namespace verbena::session
