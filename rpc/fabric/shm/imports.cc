#include "rpc/fabric/shm/imports.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "rpc/memory/helpers.h"

namespace verbena::fabric::shm {
namespace {

// What is faulted in at once, a huge page. Smaller, and large READs of a fresh slab wait for more
// calls of the kernel; larger, and a peer with holes in its memory costs more than what is READ.
constexpr uint64_t kBlockBytes = 2 << 20;

using Key = std::tuple<memory::Device*, dev_t, ino_t, uint64_t, uint64_t>;

struct Cache {
  std::mutex mutex;
  std::map<Key, std::weak_ptr<Imported>> known;  // dead ones are dropped by the next import
};

Cache& TheCache() {
  static Cache* const cache = new Cache;
  return *cache;
}

}  // namespace

Imported::Imported(const memory::Mapping& mapping, bool whole)
    : mapping_(mapping),
      populated_(mapping.device->host_accessible() ? mapping.bytes / kBlockBytes + 1 : 0),
      whole_(whole),
      lock_tried_(!mapping.device->host_accessible()) {}

Imported::~Imported() {
  memory::PostToSetup([mapping = mapping_, locked_for = locked_for_] {
    if (locked_for != nullptr) locked_for->UnlockHost(mapping);
    mapping.device->Release(mapping);
  });
}

void Imported::LockFor(memory::Device& device) {
  if (lock_tried()) return;
  // Locking would make the pages of a peer's file that has holes.
  if (whole_ && device.LockHost(mapping_, true)) locked_for_ = &device;
  lock_tried_.store(true, std::memory_order_release);
}

bool Imported::Holds(uint64_t offset, uint64_t bytes) const {
  return bytes != 0 && offset <= mapping_.bytes && bytes <= mapping_.bytes - offset;
}

void Imported::Populate(uint64_t offset, uint64_t bytes) {
  if (populated_.empty() || !Holds(offset, bytes)) return;
  for (uint64_t i = offset / kBlockBytes; i <= (offset + bytes - 1) / kBlockBytes; ++i) {
    if (populated_[i].load(std::memory_order_relaxed)) continue;
    const uint64_t begin = i * kBlockBytes;
    mapping_.device->Populate(mapping_, begin, std::min(kBlockBytes, mapping_.bytes - begin));
    populated_[i].store(true, std::memory_order_relaxed);
  }
}

bool Imported::populated(uint64_t offset, uint64_t bytes) const {
  if (!Holds(offset, bytes)) return false;
  if (!mapping_.device->host_accessible()) return true;  // there are no pages to fault in
  for (uint64_t i = offset / kBlockBytes; i <= (offset + bytes - 1) / kBlockBytes; ++i) {
    if (!populated_[i].load(std::memory_order_relaxed)) return false;
  }
  return true;
}

absl::StatusOr<ImportRef> ImportOnce(memory::Device& device, memory::Export from_peer) {
  struct stat file {};
  // Of a driver's descriptors the kernel says nothing: one file for all.
  const bool known = from_peer.way == memory::ExportWay::kMemfd && fstat(from_peer.fd, &file) == 0;
  const Key key(&device, file.st_dev, file.st_ino, from_peer.offset, from_peer.bytes);
  Cache& cache = TheCache();
  const std::lock_guard lock(cache.mutex);
  std::erase_if(cache.known, [](const auto& entry) { return entry.second.expired(); });
  if (known) {
    const auto found = cache.known.find(key);
    ImportRef same = found == cache.known.end() ? nullptr : found->second.lock();
    if (same != nullptr) {
      close(from_peer.fd);
      return same;
    }
  }
  const absl::StatusOr<memory::Mapping> mapping = device.Import(from_peer);
  if (!mapping.ok()) return mapping.status();
  const bool whole = known && file.st_blocks * 512 >= file.st_size;
  ImportRef made = std::make_shared<Imported>(*mapping, whole);
  if (known) cache.known[key] = made;
  return made;
}

}  // namespace verbena::fabric::shm
