// The process-wide numbers of method paths.
#include <deque>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "rpc/session/session.h"

namespace verbena::session {
namespace {

struct Registry {
  absl::Mutex mutex;
  std::deque<std::string> paths ABSL_GUARDED_BY(mutex);  // never moves a string
  absl::flat_hash_map<absl::string_view, uint32_t> ids ABSL_GUARDED_BY(mutex);
};

Registry& TheRegistry() {
  static Registry* const registry =
      new Registry;  // never destroyed: stubs of static duration may come late
  return *registry;
}

}  // namespace

uint32_t MethodId(absl::string_view path) {
  Registry& registry = TheRegistry();
  absl::MutexLock lock(&registry.mutex);
  const auto found = registry.ids.find(path);
  if (found != registry.ids.end()) return found->second;
  const uint32_t id = static_cast<uint32_t>(registry.paths.size());
  registry.paths.emplace_back(path);
  registry.ids.emplace(registry.paths.back(), id);
  return id;
}

absl::string_view MethodPath(uint32_t id) {
  Registry& registry = TheRegistry();
  absl::MutexLock lock(&registry.mutex);
  return id < registry.paths.size() ? absl::string_view(registry.paths[id]) : absl::string_view();
}

}  // namespace verbena::session
