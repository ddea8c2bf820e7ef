#pragma once
// A NIC's dma-buf for soft-RoCE, which has none: what a FakeDevice exports is a memfd, and here it
// is mapped and registered as host memory by the addresses of the device. So a NIC reads and writes
// memory that the CPU may not touch, through the library's own code on both ends. It takes what the
// kernel takes, and no more.
#include <atomic>

namespace verbena::fabric::verbs {

class FakeDmaBuf {
 public:
  // From now on, and until the end of the object: one at a time.
  FakeDmaBuf();
  ~FakeDmaBuf();
  FakeDmaBuf(const FakeDmaBuf&) = delete;
  FakeDmaBuf& operator=(const FakeDmaBuf&) = delete;

  // What registering a dma-buf fails with from now on; 0: it does not.
  static std::atomic<int> refusal;
  // The same by address, where `peermem` is loaded: 0 as above, which here only a test without
  // READs can want, since the CPU's address is nobody's.
  static std::atomic<bool> peermem;
  static std::atomic<int> peermem_refusal;
  // Since the object was made.
  static std::atomic<int> asked, asked_by_address;
  static std::atomic<int> live;        // registrations
  static std::atomic<int> bad_offset;  // asked for against the kernel's rules
};

}  // namespace verbena::fabric::verbs
