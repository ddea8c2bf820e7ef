#include "rpc/fabric/shm/exports.h"

#include <algorithm>

namespace verbena::fabric::shm {

Exports::Iterator Exports::Find(uint64_t buffer) {
  const auto it = std::lower_bound(entries_.begin(), entries_.end(), buffer,
                                   [](const Entry& entry, uint64_t b) { return entry.buffer < b; });
  return it == entries_.end() || it->buffer != buffer ? entries_.end() : it;
}

Exports::State Exports::StateOf(uint64_t buffer) const {
  const auto it = const_cast<Exports*>(this)->Find(buffer);
  if (it == entries_.end()) return State::kNone;
  return it->sent ? State::kSent : State::kSending;
}

void Exports::Begin(uint64_t buffer) {
  const auto at = std::upper_bound(entries_.begin(), entries_.end(), buffer,
                                   [](uint64_t b, const Entry& entry) { return b < entry.buffer; });
  entries_.insert(at, {buffer, ++uses_});
}

void Exports::End(uint64_t buffer, bool sent) {
  const auto it = Find(buffer);
  if (it == entries_.end()) return;
  it->sent = sent;
  if (!sent) entries_.erase(it);
}

void Exports::Use(uint64_t buffer) {
  const auto it = Find(buffer);
  if (it == entries_.end()) return;
  ++it->leases;
  it->used = ++uses_;
}

void Exports::Unuse(uint64_t buffer) {
  const auto it = Find(buffer);
  if (it == entries_.end() || it->leases == 0) return;
  --it->leases;
  it->used = ++uses_;
}

std::optional<uint64_t> Exports::TakeUnused() {
  const auto oldest = [](const Entry& a, const Entry& b) {
    const bool free_a = a.sent && a.leases == 0, free_b = b.sent && b.leases == 0;
    return free_a != free_b ? free_a : a.used < b.used;
  };
  const auto it = std::min_element(entries_.begin(), entries_.end(), oldest);
  if (it == entries_.end() || !it->sent || it->leases != 0) return std::nullopt;
  const uint64_t buffer = it->buffer;
  entries_.erase(it);
  return buffer;
}

bool Exports::Forget(uint64_t buffer) {
  const auto it = Find(buffer);
  if (it == entries_.end() || !it->sent) return false;
  entries_.erase(it);
  return true;
}

}  // namespace verbena::fabric::shm
