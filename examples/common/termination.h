#pragma once
// Waits for ^C or `kill`: what a server's main() does once it has started.
#include <semaphore.h>
#include <signal.h>

namespace verbena::examples {

// Blocks until one of the signals comes. Before this is called, and the second time after it, they
// end the process at once: a server that still starts, or does not stop, has nothing to tidy up.
inline void WaitForTermination() {
  static sem_t asked;
  sem_init(&asked, /*pshared=*/0, /*value=*/0);
  struct sigaction action = {};
  action.sa_handler = [](int) { sem_post(&asked); };
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // Interrupted by the signal's own handler, it has to be asked again.
  while (sem_wait(&asked) != 0) continue;
}

}  // namespace verbena::examples
