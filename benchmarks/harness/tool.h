#pragma once
// A benchmark of somebody else's that is a server process and a client process on this machine.
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace verbena::benchmarks {

// Runs both, pinned to their cores, the client once the server listens on TCP port `port`; blocks
// until they have ended. What the client printed; INTERNAL with its last words when it failed.
absl::StatusOr<std::string> RunTool(const std::vector<std::string>& server,
                                    const std::vector<std::string>& client, int port,
                                    int server_core, int client_core);

}  // namespace verbena::benchmarks
