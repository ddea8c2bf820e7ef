// A lock held across Get(), which callbacks of other calls take too. In a binary of its own: the
// server is another process, forked before this one has used the library.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <mutex>

#include "tests/client/fixture.h"

namespace verbena {
namespace {

// In the child: serves until it is killed, after telling its address.
[[noreturn]] void Serve(int to_parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Greeter greeter;
  const std::string& address = greeter.loop.server().address();
  if (write(to_parent, address.data(), address.size()) < 0) _exit(1);
  close(to_parent);
  for (;;) pause();
}

TEST_CASE("a lock held across Get does not deadlock with callbacks that take it",
          "[client][call]") {
  int pipe_fds[2];
  REQUIRE(pipe(pipe_fds) == 0);
  const pid_t server = fork();
  REQUIRE(server >= 0);
  if (server == 0) Serve(pipe_fds[1]);
  close(pipe_fds[1]);
  char address[64] = {};
  REQUIRE(read(pipe_fds[0], address, sizeof(address) - 1) > 0);

  test::Greeter::Stub stub(Channel::Create(address));
  std::mutex mutex;
  std::atomic<int> callbacks{0};
  for (int i = 0; i < 100; ++i) {
    // The callback may run, and block, while this thread waits below with the lock.
    stub.SayHello(RequestFor("callback")).Then([&](absl::StatusOr<test::HelloReply>) {
      std::lock_guard lock(mutex);
      ++callbacks;
    });
    std::lock_guard lock(mutex);
    REQUIRE(
        stub.SayHello(RequestFor("get"), CallOptions().set_timeout(absl::Seconds(20))).Get().ok());
  }
  REQUIRE(Eventually([&] { return callbacks == 100; }));
  kill(server, SIGKILL);
  waitpid(server, nullptr, 0);
}

}  // namespace
}  // namespace verbena
