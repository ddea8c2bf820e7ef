#include "rpc/reactor/start_thread.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <utility>

#include "rpc/base/check.h"

namespace verbena::reactor {

std::thread StartThread(const std::string& name, absl::AnyInvocable<void() &&> body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // a new thread inherits the mask
  std::thread thread;
  std::string failure;
  try {
    thread = std::thread([run = std::move(body)]() mutable { std::move(run)(); });
  } catch (const std::system_error& error) {
    failure = error.what();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  VERBENA_CHECK(thread.joinable(), "cannot start thread ", name, ": ", failure);
  pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());
  return thread;
}

}  // namespace verbena::reactor
