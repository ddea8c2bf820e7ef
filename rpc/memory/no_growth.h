#pragma once
// For threads that must not wait for memory: tries with what is there.
namespace verbena::memory {

// While one lives, allocations of its thread that would have to grow a pool, or to ask a device,
// fail with RESOURCE_EXHAUSTED instead, and refused() says so: then ask again on the growth thread.
class NoGrowth {
 public:
  NoGrowth();
  ~NoGrowth();
  NoGrowth(const NoGrowth&) = delete;
  NoGrowth& operator=(const NoGrowth&) = delete;

  bool refused() const { return refused_; }
  // By the allocators: whether this thread must not wait now; it is remembered.
  static bool Refuse();

 private:
  NoGrowth* const outer_;
  bool refused_ = false;
};

}  // namespace verbena::memory
