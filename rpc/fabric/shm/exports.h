#pragma once
// What one end of a link has exported to its peer, and which leases need it: the peer takes only so
// many (side_channel.h, kExportsMax), so what no lease has needed for longest makes room for more.
//
// Reactor thread only.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace verbena::fabric::shm {

class Exports {
 public:
  // kSending: a job on the setup thread is about to send it.
  enum class State : uint8_t { kNone, kSending, kSent };

  State StateOf(uint64_t buffer) const;
  // Of both states: what the peer has, or may have soon.
  size_t size() const { return entries_.size(); }
  void Begin(uint64_t buffer);
  // Its job has ended.
  void End(uint64_t buffer, bool sent);
  // A lease of it begins; `buffer` was sent. It stays until as many have ended, or it is forgotten.
  void Use(uint64_t buffer);
  void Unuse(uint64_t buffer);
  // Takes out, of what was sent and no lease needs, what has not been needed for longest. Nothing:
  // there is none. Looks at all.
  std::optional<uint64_t> TakeUnused();
  // False: it was not sent.
  bool Forget(uint64_t buffer);

 private:
  struct Entry {
    uint64_t buffer = 0;
    uint64_t used = 0;  // when a lease of it began or ended last, in uses of the link
    uint32_t leases = 0;
    bool sent = false;
  };
  using Iterator = std::vector<Entry>::iterator;
  Iterator Find(uint64_t buffer);

  std::vector<Entry> entries_;  // by buffer
  uint64_t uses_ = 0;
};

}  // namespace verbena::fabric::shm
