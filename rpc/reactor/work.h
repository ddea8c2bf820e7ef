#pragma once
// A unit of work for a reactor: intrusive, so that queueing never allocates. The object that embeds
// it owns it; it must stay valid until it has run, and is queued at most once at a time.
namespace verbena::reactor {

struct Work {
  using Run = void (*)(Work*);
  explicit Work(Run r) : run(r) {}
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  Run run;
  Work* next = nullptr;
};

}  // namespace verbena::reactor
