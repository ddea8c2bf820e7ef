#pragma once
// session::ReadyWaiter: what waits for work on devices' streams, which no fabric reports
// (EngineImpl::AwaitReady). Reactor thread only.
namespace verbena::session {

class ReadyWaiter {
 public:
  // By the engine, until it says true: nothing is awaited any more. `ask`: whether the devices have
  // failed.
  virtual bool PollReady(bool ask) = 0;

 protected:
  ~ReadyWaiter() = default;
};

}  // namespace verbena::session
