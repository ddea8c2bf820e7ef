#include "rpc/fabric/shm/lease_table.h"

#include <algorithm>

namespace verbena::fabric::shm {
namespace {

constexpr uint64_t kRevoked = uint64_t{1} << 23;
constexpr uint64_t kGeneration = uint64_t{1} << 24;

}  // namespace

uint32_t LeaseOwner::Add(uint64_t buffer, uint64_t start, uint64_t bytes, RemoteKey& key) {
  if (free_.empty() && used_ == kLeasesMax) return kNoEntry;
  uint32_t index = used_;
  if (free_.empty()) {
    ++used_;
  } else {
    index = free_.back();
    free_.pop_back();
  }
  LeaseEntry& entry = entries_[index];
  entry.buffer.store(buffer, std::memory_order_relaxed);
  entry.start.store(start, std::memory_order_relaxed);
  entry.bytes.store(bytes, std::memory_order_relaxed);
  const uint64_t word =
      (entry.word.load(std::memory_order_relaxed) & ~(kGeneration - 1)) + kGeneration;
  entry.word.store(word, std::memory_order_release);
  key.words = {word, index, buffer, start};
  return index;
}

void LeaseOwner::Revoke(uint32_t index) {
  std::atomic<uint64_t>& word = entries_[index].word;
  word.store(word.load(std::memory_order_relaxed) | kRevoked, std::memory_order_relaxed);
  // Whatever the owner writes to the memory from now on is seen after the word.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  free_.push_back(index);
}

LeaseView CheckLease(const LeaseEntry* entries, const RemoteKey& key, uint64_t offset,
                     uint64_t bytes) {
  LeaseView view;
  view.error = Error::kLeaseLost;
  if (key.words[1] >= kLeasesMax || (key.words[0] & kRevoked) != 0 || key.words[0] == 0)
    return view;
  const LeaseEntry& entry = entries[key.words[1]];
  if (entry.word.load(std::memory_order_acquire) != key.words[0]) return view;
  view.buffer = entry.buffer.load(std::memory_order_relaxed);
  view.start = entry.start.load(std::memory_order_relaxed);
  const uint64_t length = entry.bytes.load(std::memory_order_relaxed);
  if (view.buffer != key.words[2] || view.start != key.words[3]) return view;
  const bool inside = offset <= length && bytes <= length - offset;
  view.error = inside ? Error::kOk : Error::kOutOfBounds;
  return view;
}

bool LeaseStillLive(const LeaseEntry* entries, const RemoteKey& key) {
  std::atomic_thread_fence(std::memory_order_acquire);
  return entries[key.words[1]].word.load(std::memory_order_relaxed) == key.words[0];
}

bool IsHeld(const Hold* holds, uint32_t entry, uint64_t word) {
  for (uint32_t i = 0; i < kHolds; ++i) {
    if (holds[i].word.load(std::memory_order_acquire) == word &&
        holds[i].entry.load(std::memory_order_relaxed) == entry) {
      return true;
    }
  }
  return false;
}

bool AnyHeld(const Hold* holds) {
  return std::any_of(holds, holds + kHolds, [](const Hold& hold) {
    return hold.word.load(std::memory_order_acquire) != 0;
  });
}

}  // namespace verbena::fabric::shm
