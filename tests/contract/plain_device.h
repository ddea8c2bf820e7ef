#pragma once
// A host device with no pools behind it, for tests of fabrics alone: memory is what the test made,
// copies are memcpy, and Import maps what a peer exported.
#include "rpc/memory/device.h"
#include "rpc/memory/region.h"

namespace verbena::contract {

memory::Device& PlainDevice();

// A region of its own sealed memfd.
memory::RegionRef MakeMemfdRegion(size_t bytes);
// A region on the heap.
memory::RegionRef MakeHeapRegion(size_t bytes);

}  // namespace verbena::contract
