#pragma once
// Busy-polled stream sockets: the floor under every transport that uses the kernel.
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "benchmarks/harness/workload.h"

namespace verbena::benchmarks {

// Listens (and later connects) on a unix socket or a loopback port, as `transport` says.
absl::StatusOr<int> Listen(const Params& params, std::string* address);
absl::StatusOr<int> ConnectTo(const Params& params);
// Blocks. -1 when the listener is gone.
int AcceptOne(int listener);

// Exactly `bytes`, spinning without sleeping. False at end of file or error.
bool SendSpinning(int fd, const char* data, size_t bytes);
bool ReceiveSpinning(int fd, char* data, size_t bytes);
// The same for the first byte of a request, but sleeps in poll() after 2 ms of silence: an idle
// participant must not use its core while another one is measured.
bool ReceiveOrSleep(int fd, char* data, size_t bytes);

}  // namespace verbena::benchmarks
