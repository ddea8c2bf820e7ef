#pragma once
// What a port really does: two queue pairs of this process, joined over it, SEND and READ a
// pattern; then a window is read one byte past its end. Includes no verbs header.
#include "absl/status/status.h"
#include "rpc/memory/device.h"

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

// The same with a page of the device's memory: a pattern is READ into it, found there by the device
// and READ out of it again, by the NIC alone. Allocates and registers it. Errors: device_memory.h,
// and what a READ fails with; DATA_LOSS: other bytes.
absl::Status RunDeviceTest(const PortAddress& port, memory::Device& device);

}  // namespace verbena::fabric::verbs
