#pragma once
// What a server over verbs holds: by its own account, its fabrics', and the kernel's.
#include <cstdint>
#include <map>
#include <string>

#include "tests/system/process.h"

namespace verbena::system_test {

using Numbers = std::map<std::string, uint64_t>;

// A field of a peer's answer. Fails where there is none.
uint64_t Number(const std::map<std::string, std::string>& fields, const std::string& name);

std::string OutputOf(const std::string& command);

// All that a server says of its verbs fabrics.
Numbers VerbsOf(ServerPeer& server);

// What is there of a server at one moment, and what is more later.
struct Holdings {
  ServerPeer::State state;
  Numbers fabric;
  // For all processes of the machine: queue pairs, completion queues, registrations, ... of all
  // devices. Empty where nobody says.
  Numbers kernel;

  static Holdings Of(ServerPeer& server);
  // Empty: nothing. Windows that nobody uses are kept, at most what is allocated at a time.
  std::string MoreIn(const Holdings& now) const;
};

}  // namespace verbena::system_test
