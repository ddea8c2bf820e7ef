#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "absl/strings/str_split.h"
#include "tests/system/peer.h"

namespace verbena::system_test {

std::vector<std::string> NextCommand() {
  std::string line;
  if (!std::getline(std::cin, line)) return {};
  return absl::StrSplit(line, ' ');
}

void Answer(const std::string& line) { std::cout << line << std::endl; }

void ForkChild() {
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);  // never outlives the test for long
    close(0);
    close(1);
    for (;;) pause();
  }
  Answer(std::to_string(child));
}

}  // namespace verbena::system_test

int main(int argc, char** argv) {
  using namespace verbena::system_test;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() >= 2 && arguments[0] == "server") return RunServer(arguments);
  if (arguments.size() == 3 && arguments[0] == "client") return RunClient(arguments);
  if (arguments.size() == 4 && arguments[0] == "half_client") return RunHalfClient(arguments);
  if (arguments.size() == 3 && arguments[0] == "half_server") return RunHalfServer(arguments);
  std::cerr << "system_peer server ADDRESS [OPTION VALUE]... | client ADDRESS TRANSPORT\n";
  return 2;
}
