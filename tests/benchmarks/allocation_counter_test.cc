#include "benchmarks/harness/allocation_counter.h"

#include <atomic>
#include <new>
#include <string>
#include <thread>

#include "tests/catch.h"

// Exported, so that its name is found at run time as libprotobuf's are.
namespace google::protobuf {
[[gnu::noinline, gnu::visibility("default")]] void* PretendToAllocate() {
  void* p = ::operator new(48);
  asm volatile("" : "+r"(p));  // no tail call: this frame must be there
  return p;
}
[[gnu::noinline, gnu::visibility("default")]] size_t PretendToAssign(std::string& s) {
  s.assign(200, 'x');
  asm volatile("" : : "r"(s.data()) : "memory");
  return s.size();
}
}  // namespace google::protobuf

namespace verbena::benchmarks {
namespace {

[[gnu::noinline]] void AllocateHere(int times) {
  for (int i = 0; i < times; ++i) {
    void* p = ::operator new(64);
    asm volatile("" : "+r"(p));
    ::operator delete(p);
  }
}

TEST_CASE("a thread that is left out is not counted, others are", "[benchmarks]") {
  const uint64_t before = AllocationCount();
  CountAllocations(true);
  LeaveOutAllocationsHere(true);
  AllocateHere(100);
  std::atomic<bool> go = false;
  std::thread other([&go] {
    while (!go) {
    }
    AllocateHere(7);
  });
  go = true;
  other.join();
  LeaveOutAllocationsHere(false);
  CountAllocations(false);
  CHECK(AllocationCount() - before == 7);
}

TEST_CASE("our allocations are counted, in every form and thread", "[benchmarks]") {
  REQUIRE(AllocationCounterPresent());
  AllocateHere(3);  // off: not counted
  uint64_t before = AllocationCount();
  CountAllocations(true);
  AllocateHere(1000);
  CountAllocations(false);
  REQUIRE(AllocationCount() - before == 1000);

  std::atomic<bool> go = false;
  std::thread other([&go] {
    while (!go) {
    }
    AllocateHere(500);
  });
  before = AllocationCount();
  CountAllocations(true);
  go = true;
  other.join();
  CountAllocations(false);
  REQUIRE(AllocationCount() - before == 500);

  before = AllocationCount();
  CountAllocations(true);
  void* aligned = ::operator new(64, std::align_val_t(128));
  void* quiet = ::operator new(64, std::nothrow);
  CountAllocations(false);
  REQUIRE(reinterpret_cast<uintptr_t>(aligned) % 128 == 0);
  ::operator delete(aligned, std::align_val_t(128));
  ::operator delete(quiet);
  REQUIRE(AllocationCount() - before == 2);
}

TEST_CASE("protobuf's allocations are not counted, its strings' neither", "[benchmarks]") {
  const uint64_t before = AllocationCount();
  CountAllocations(true);
  void* p = google::protobuf::PretendToAllocate();
  std::string s;
  const size_t size = google::protobuf::PretendToAssign(s);
  CountAllocations(false);
  ::operator delete(p);
  REQUIRE(size == 200);
  REQUIRE(AllocationCount() - before == 0);
}

}  // namespace
}  // namespace verbena::benchmarks
