#pragma once
// Where devices lie on the PCI bus, from sysfs: which bridges and switches are between two of them,
// and how much address space one shows. Pure functions of what lies under `root`.
//
//   const PciPath gpu = PathOfPci("0000:1b:00.0");
//   PciDistance(gpu, PathOf("/sys/class/infiniband/mlx5_0/device"));
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace verbena::topology {

inline constexpr absl::string_view kSysfs = "/sys";

// From the host bridge ("pci0000:00") through bridges and switches to the device itself; empty: not
// on a PCI bus, or not there.
using PciPath = std::vector<std::string>;
// Of a folder of sysfs that is, or links to, a device's.
PciPath PathOf(const std::string& folder);
// Of an address; upper case is the same.
PciPath PathOfPci(absl::string_view address, absl::string_view root = kSysfs);

// How far data goes between the two: 0 within one device; below kPciHostBridge, and one for each
// bridge, when it passes switches alone; from there when it passes a host bridge; from
// kPciProcessors between host bridges. -1: one of them is on no bus that is known.
inline constexpr int kPciHostBridge = 100;
inline constexpr int kPciProcessors = 200;
int PciDistance(const PciPath& a, const PciPath& b);
// In words: "behind one switch".
absl::string_view PciNearness(int distance);

// The nearest of `others`, the first of equals; -1: of none it is known.
int NearestPci(const PciPath& from, absl::Span<const PciPath> others);

// Of the largest of its address registers (BARs), which is a GPU's memory, whichever it is: what
// NVIDIA calls BAR 1 is the second or the third of them. 0: not known.
uint64_t LargestBarBytes(absl::string_view address, absl::string_view root = kSysfs);

}  // namespace verbena::topology
