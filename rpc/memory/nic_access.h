#pragma once
// memory::NicAccess: what a NIC that is to read and write a device's memory by itself (GPUDirect)
// has to know of the device, beside how it exports its memory (ExportWay::kDmaBuf). A device that
// no NIC reaches is none.
//
//   if (memory::NicAccess* nic = memory::NicAccessOf(device)) ... nic->nic_facts().flushes
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "rpc/memory/device.h"

namespace verbena::memory {

struct NicFacts {
  std::string pci;       // "0000:1b:00.0"; empty: on no bus that is known
  bool dma_buf = false;  // its memory is exported as kDmaBuf
  // Whether what a NIC has written is sure to be seen, by work that begins after its completion,
  // only once FlushNicWrites has returned.
  bool flushes = false;
  // Such a flush is there, or none is needed. Without it no NIC may write the memory.
  bool writable = true;
  // Address space through which NICs reach the memory (BAR 1), which bounds what may be registered
  // with them at a time; 0: not known.
  uint64_t window_bytes = 0;
};

class NicAccess {
 public:
  // Any thread; does not block.
  virtual NicFacts nic_facts() const = 0;
  // What NICs have written to the memory, and completed, is seen by what begins from now on. Waits
  // for some microseconds: setup thread only.
  virtual absl::Status FlushNicWrites() = 0;

 protected:
  ~NicAccess() = default;
};

// Null: NICs do not reach it. Not the owner. Any thread.
inline NicAccess* NicAccessOf(Device& device) { return dynamic_cast<NicAccess*>(&device); }

}  // namespace verbena::memory
