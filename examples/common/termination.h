#pragma once
// Waits for ^C or `kill`: what a server's main() does once it has started.
#include <signal.h>

namespace verbena::examples {

// Make one before any other thread is started: threads inherit that the signals are blocked, and so
// they reach Wait().
class Termination {
 public:
  Termination() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  }
  // Blocks until one of the signals comes.
  void Wait() {
    int signal = 0;
    sigwait(&signals_, &signal);
  }

 private:
  sigset_t signals_;
};

}  // namespace verbena::examples
