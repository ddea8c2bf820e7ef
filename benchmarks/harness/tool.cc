#include "benchmarks/harness/tool.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "benchmarks/harness/line.h"

namespace verbena::benchmarks {
namespace {

// Starts a command pinned to `core`; its output goes to `output` (or nowhere when -1).
int Spawn(const std::vector<std::string>& command, int core, int output) {
  const int pid = fork();
  if (pid != 0) return pid;
  PinToCore(core);
  dup2(output >= 0 ? output : open("/dev/null", O_WRONLY), STDOUT_FILENO);
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(127);
}

// Whether somebody listens on a TCP port. Connecting to find out would be taken for the client.
bool Listening(int port) {
  const std::string wanted = absl::StrFormat(":%04X", port);
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(table);
    for (std::string line; std::getline(in, line);) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
      if (words.size() > 3 && absl::EndsWith(words[1], wanted) && words[3] == "0A") return true;
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<std::string> RunTool(const std::vector<std::string>& server,
                                    const std::vector<std::string>& client, int port,
                                    int server_core, int client_core) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  const int server_pid = Spawn(server, server_core, -1);
  for (int i = 0; i < 5000 && !Listening(port); ++i) usleep(1000);
  const int client_pid = Spawn(client, client_core, fds[1]);
  close(fds[1]);
  std::string output;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(fds[0], buffer, sizeof(buffer))) > 0;)
    output.append(buffer, static_cast<size_t>(n));
  close(fds[0]);
  int client_status = 0;
  waitpid(client_pid, &client_status, 0);
  if (client_status != 0) kill(server_pid, SIGKILL);
  waitpid(server_pid, nullptr, 0);
  if (client_status == 0) return output;
  return absl::InternalError(absl::StrCat(
      client[0], " failed: ", output.substr(output.size() - std::min<size_t>(output.size(), 200))));
}

}  // namespace verbena::benchmarks
