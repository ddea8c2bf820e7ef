#pragma once
// What a port really does: two queue pairs of this process, joined over it, SEND and READ a
// pattern; then a window is read one byte past its end. Includes no verbs header.
#include "absl/status/status.h"

namespace verbena::fabric::verbs {

struct PortAddress;

struct SelfTest {
  absl::Status send;  // a pattern arrived
  absl::Status read;  // a registered pattern was READ
  // A window was bound, READ through and taken back, after which it gave nothing. UNIMPLEMENTED:
  // the device has no windows of type 2B.
  absl::Status window;
  // The device refuses READs past a window's end.
  bool bounds_enforced = false;
};

// Takes some ms, and at most some seconds where the device does not answer. Setup thread, or any
// that may wait.
SelfTest RunSelfTest(const PortAddress& port);

}  // namespace verbena::fabric::verbs
