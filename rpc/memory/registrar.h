#pragma once
// memory::Registrar: what a domain (a NIC and its protection domain, shm, nothing) needs to know of
// a region before it can send from it, READ into it or lease it. Implemented by fabrics, called by
// memory/ for slabs when they are made and for user memory when it is registered.
#include <memory>

#include "absl/status/statusor.h"
#include "rpc/memory/region.h"

namespace verbena::memory {

enum class Use : uint8_t { kFrames = 1, kReadInto = 2, kLeasable = 4 };

// What the domain keeps for one region: an ibv_mr, an export, or nothing. Owned by the registrar.
class Registration {
 public:
  virtual ~Registration() = default;
};

class Registrar {
 public:
  virtual ~Registrar() = default;
  // May block: setup thread only. `uses` is a sum of Use bits.
  virtual absl::StatusOr<std::unique_ptr<Registration>> Register(const Region& region,
                                                                 uint8_t uses) = 0;
  // Refused (FAILED_PRECONDITION, naming what still uses it, `registration` left alone) while a
  // lease or a READ needs it; else `registration` is null when it returns. Setup thread only.
  virtual absl::Status Unregister(std::unique_ptr<Registration>& registration) = 0;
};

}  // namespace verbena::memory
