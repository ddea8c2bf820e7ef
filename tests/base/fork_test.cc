#include "rpc/base/fork.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/catch.h"

TEST_CASE("a forked child knows that it is one, and closes what it must not hold", "[fork]") {
  int kept[2], closed[2];
  REQUIRE(pipe(kept) == 0);
  REQUIRE(pipe(closed) == 0);
  verbena::WatchForFork();
  verbena::CloseInForkChild(closed[0]);
  verbena::CloseInForkChild(kept[0]);
  verbena::ForgetForkChild(kept[0]);
  CHECK_FALSE(verbena::Forked());
  const pid_t child = fork();
  if (child == 0) {
    const bool ok =
        verbena::Forked() && fcntl(closed[0], F_GETFD) < 0 && fcntl(kept[0], F_GETFD) >= 0;
    _exit(ok ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK_FALSE(verbena::Forked());
  verbena::ForgetForkChild(closed[0]);
  for (int fd : {kept[0], kept[1], closed[0], closed[1]}) close(fd);
}
