#pragma once
// The contract suite's other process: a fork that runs one end of a link, to be killed at a bad
// moment.
#include <sys/types.h>

#include <functional>
#include <memory>

#include "tests/contract/fabric_contract.h"

namespace verbena::contract {

// One end of a link between two processes, set up and started.
struct End {
  std::shared_ptr<void> keep;
  std::unique_ptr<fabric::Fabric> fabric;
  fabric::Sockets sockets;
  Recorder events;

  ~End() {
    fabric.reset();
    CloseSockets(sockets);
  }
};

// Forks. The child sets up the server's end of `link` and runs `body` with it, which does not
// return to the test. The caller gets the client's end. No threads may run.
class OtherProcess {
 public:
  OtherProcess(const Subject& subject, LinkId link, const std::function<void(End&)>& body);
  ~OtherProcess();

  End& here() { return here_; }
  void Kill();  // with SIGKILL; waits until it is gone
  void Stop();  // with SIGSTOP

 private:
  pid_t child_ = -1;
  End here_;
};

}  // namespace verbena::contract
