// The copy kernel's source, by the toolkit's assembler where that is: a driver would only find out
// on a machine with a GPU. Hidden, and a test of its own in CTest, which counts it as skipped where
// there is no assembler.
#include "rpc/gpu/copy_kernel.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/catch.h"

namespace verbena::gpu {
namespace {

TEST_CASE("the copy kernel is assembled for every kind of GPU", "[.][ptxas]") {
  const std::string assembler = VERBENA_PTXAS;
  if (assembler.empty()) {
    std::printf("not run: there is no ptxas\n");
    std::exit(77);
  }
  char source[] = "/tmp/verbena-copy-kernel-XXXXXX";
  const int fd = mkstemp(source);
  REQUIRE(fd >= 0);
  const std::string text = CopyKernel::ptx();
  REQUIRE(write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  close(fd);
  for (const char* architecture : {"sm_75", "sm_80", "sm_90", "sm_100"}) {
    const std::string command =
        assembler + " -arch=" + architecture + " " + source + " -o /dev/null";
    INFO(command);
    CHECK(std::system(command.c_str()) == 0);
  }
  unlink(source);
}

}  // namespace
}  // namespace verbena::gpu
