#pragma once
// Path: the way that the bytes of a fetch took, told by CallReport; a Placement may require one.
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace verbena {

enum class Path : uint8_t {
  kNone = 0,            // no bytes moved, or it is not known; required: any
  kLocal = 1,           // "local": they were in this process already
  kMapped = 2,          // "mapped": the CPU copied from the owner's memory, which is mapped here
  kProcess = 3,         // "process": the kernel copied from the owner's process
  kStream = 4,          // "stream": over a socket
  kRdmaRead = 5,        // "rdma-read": a NIC wrote host memory
  kGdrRead = 6,         // "gdr-read": a NIC wrote a GPU's memory, or the owner's read it
  kSameDevice = 7,      // "same-device": a GPU copied within its memory, from another process's
  kNvlinkIpc = 8,       // "nvlink-ipc": a GPU copied from another's memory, by NVLink
  kPeerIpc = 9,         // "peer-ipc": the same, by PCIe or by what the driver does not tell
  kDeviceCopy = 10,     // "device-copy": a GPU copied from or to page-locked memory of the host
  kPinnedStaging = 11,  // "pinned-staging": that, and the CPU from or to the memory wanted
};

constexpr absl::string_view PathName(Path path) {
  switch (path) {
    case Path::kNone:
      return "none";
    case Path::kLocal:
      return "local";
    case Path::kMapped:
      return "mapped";
    case Path::kProcess:
      return "process";
    case Path::kStream:
      return "stream";
    case Path::kRdmaRead:
      return "rdma-read";
    case Path::kGdrRead:
      return "gdr-read";
    case Path::kSameDevice:
      return "same-device";
    case Path::kNvlinkIpc:
      return "nvlink-ipc";
    case Path::kPeerIpc:
      return "peer-ipc";
    case Path::kDeviceCopy:
      return "device-copy";
    case Path::kPinnedStaging:
      return "pinned-staging";
  }
  return "unknown";
}

// What PathName calls so. INVALID_ARGUMENT lists the names.
absl::StatusOr<Path> PathFromName(absl::string_view name);

}  // namespace verbena
