#pragma once
// Tells this process's shm fabrics when memory that they may have exported is about to go, so that
// peers give up their mappings of it.
#include <memory>

#include "rpc/fabric/shm/inbox.h"

namespace verbena::fabric::shm {

// `inbox` gets a kWithdrawn for each slab that is unmapped from soon after now on, as long as it
// lives. Any thread.
void HearOfWithdrawals(const std::shared_ptr<Inbox>& inbox);

}  // namespace verbena::fabric::shm
