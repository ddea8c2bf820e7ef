#pragma once
// What the owner of a lease may say of a READ that it was asked for: of lanes and links it has
// nothing to say, as a READ that ended with those would be posted again for as long as it does.
#include <cstdint>

#include "rpc/base/ids.h"

namespace verbena::fabric {

// `status` is the peer's, and may be anything.
inline bool OwnerMayAnswer(uint64_t status) {
  for (const Error error : {Error::kOk, Error::kLeaseLost, Error::kOutOfBounds, Error::kUnsupported,
                            Error::kNoMemory, Error::kFault}) {
    if (status == static_cast<uint64_t>(error)) return true;
  }
  return false;
}

}  // namespace verbena::fabric
