#include "rpc/fabric/shm/imports.h"

#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <tuple>

#include "rpc/memory/helpers.h"

namespace verbena::fabric::shm {
namespace {

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

Imported::~Imported() {
  memory::PostToSetup([mapping = mapping_] { mapping.device->Release(mapping); });
}

void Imported::Populate() {
  if (populated_.load(std::memory_order_relaxed)) return;
  mapping_.device->Populate(mapping_);
  populated_.store(true, std::memory_order_relaxed);
}

absl::StatusOr<ImportRef> ImportOnce(memory::Device& device, memory::Export from_peer) {
  struct stat file {};
  const bool known = fstat(from_peer.fd, &file) == 0;
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
  ImportRef made = std::make_shared<Imported>(*mapping);
  if (known) cache.known[key] = made;
  return made;
}

}  // namespace verbena::fabric::shm
