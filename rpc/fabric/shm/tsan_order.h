#pragma once
// shm::TsanOrder: tells ThreadSanitizer what a ring's commit words order. Both ends of a link may
// be in one process, each with a mapping of its own. ThreadSanitizer tells memory by its address,
// so for it the release store through one mapping and the acquire load through the other have
// nothing to do with each other. Empty in every other build.
//
// Reactor thread only.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "rpc/fabric/shm/segment.h"

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace verbena::fabric::shm {

#ifdef __SANITIZE_THREAD__

class TsanOrder {
 public:
  // Both ends find one place by what both see: the segment's nonce. Two rings that share a place
  // hide races between their users; with so many places that is rare. A ring whose other end is in
  // another process orders nothing here.
  void Attach(const Control& control) {
    constexpr size_t kPlaces = 1 << 13;
    static uint64_t places[kPlaces];
    uint64_t nonce;
    memcpy(&nonce, control.nonce, sizeof nonce);
    place_ = &places[nonce % kPlaces];
  }
  void Release() const { __tsan_release(place_); }
  void Acquire() const { __tsan_acquire(place_); }

 private:
  uint64_t* place_ = nullptr;
};

#else

class TsanOrder {
 public:
  void Attach(const Control&) {}
  void Release() const {}
  void Acquire() const {}
};

#endif

}  // namespace verbena::fabric::shm
