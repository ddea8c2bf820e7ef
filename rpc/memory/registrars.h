#pragma once
// The registrars of this process, one per domain, and what each keeps for each known region. Slabs
// and users' memory pass through here when they are made; a domain that appears later gets what
// there is already.
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "rpc/memory/registrar.h"

namespace verbena::memory {

// Registers every region that is known with `registrar`, and from now on each new one. A region
// that it refuses is said in the log and is not there for it: a fabric then uses its next-best way.
// Setup thread only. `registrar` stays the caller's, until RemoveRegistrar returns OK.
absl::Status AddRegistrar(Registrar& registrar, std::string name);
// Unregisters all that it keeps. FAILED_PRECONDITION: some of it is still in use; what could be, is
// unregistered, and no new region goes there. Setup thread only.
absl::Status RemoveRegistrar(Registrar& registrar);

// What `registrar` keeps for a region; null when it refused or does not know it. Valid until the
// region is unregistered. Any thread; locks: cache it per lease, not per frame.
Registration* FindRegistration(const Registrar& registrar, uint64_t buffer_id);

// For the owners of regions. `uses` is a sum of Use bits. On error no registrar keeps anything; a
// registrar that answers UNIMPLEMENTED has no use for such memory, which is no error. Setup thread
// only.
absl::Status RegisterRegion(const RegionRef& region, uint8_t uses);
// The same, but what one registrar refuses, the others keep; the refusal is said in the log. Setup
// thread only.
void RegisterWhereTaken(const RegionRef& region, uint8_t uses);
// OK when nobody keeps it. Refused as Registrar::Unregister, then whoever refused still keeps it.
// Setup thread only.
absl::Status UnregisterRegion(uint64_t buffer_id);

}  // namespace verbena::memory
