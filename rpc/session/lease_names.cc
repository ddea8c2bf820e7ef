#include "rpc/session/lease_names.h"

#include "rpc/base/check.h"
#include "rpc/base/limits.h"

namespace verbena::session {

void LeaseNames::TurnOn(absl::FunctionRef<void()> add_all) {
  on_ = turning_on_ = true;
  add_all();
  turning_on_ = false;
}

void LeaseNames::Add(const Place& owner, absl::Span<wire::PayloadEntry> entries) {
  const bool many = entries.size() > kFewPayloads;
  const bool known = turning_on_ && many;
  if (known || (!on_ && !many)) return;
  for (wire::PayloadEntry& entry : entries) {
    if (entry.lease != 0) places_.try_emplace(entry.lease, Place{owner.set, owner.arrival, &entry});
  }
}

void LeaseNames::Remove(absl::Span<wire::PayloadEntry> entries) {
  if (places_.empty()) return;
  for (wire::PayloadEntry& entry : entries) {
    const auto it = places_.find(entry.lease);
    if (it != places_.end() && it->second.entry == &entry) places_.erase(it);
  }
}

LeaseNames::Place LeaseNames::Find(uint64_t lease) const {
  const auto it = places_.find(lease);
  return it == places_.end() ? Place{} : it->second;
}

void LeaseNames::HeadEnds() {
  VERBENA_DCHECK(heads_ > 0);
  if (--heads_ == 0) absl::flat_hash_map<uint64_t, Kept>().swap(kept_);
}

void LeaseNames::Keep(absl::Span<const wire::LeaseKey> keys, uint32_t generation) {
  const bool fits = kept_.size() < limits::kPayloadsMax && keys.size() <= limits::kPiecesMax;
  if (heads_ == 0 || !fits) return;
  kept_[keys[0].lease] = Kept{generation, {keys.begin(), keys.end()}};
}

void LeaseNames::GiveKept(absl::Span<wire::PayloadEntry> entries) {
  if (kept_.empty()) return;
  for (wire::PayloadEntry& entry : entries) {
    const auto it = kept_.find(entry.lease);
    if (it == kept_.end()) continue;
    TakeKeys(entry, it->second.keys, it->second.generation);
    kept_.erase(it);
  }
}

void TakeKeys(wire::PayloadEntry& entry, absl::Span<const wire::LeaseKey> keys,
              uint32_t generation) {
  // Another number is not usable: its fetches wait.
  if (entry.lease != keys[0].lease || keys.size() != entry.pieces.size()) return;
  for (size_t piece = 0; piece < keys.size(); ++piece) {
    entry.keys[piece * entry.lanes] = keys[piece].key;
  }
  entry.key_generation = generation & wire::kKeyGenerationMask;
}

}  // namespace verbena::session
