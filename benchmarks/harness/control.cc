#include "benchmarks/harness/control.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "benchmarks/harness/line.h"

namespace verbena::benchmarks {
namespace {

// In the child: never returns.
[[noreturn]] void Become(const std::vector<std::string>& command, int core,
                         const std::vector<std::string>& environment, int control_fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  PinToCore(core);
  dup2(control_fd, kControlDescriptor);
  for (const std::string& e : environment) putenv(const_cast<char*>(e.c_str()));
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(127);
}

}  // namespace

ControlSocket::~ControlSocket() {
  if (fd_ >= 0) close(fd_);
}

ControlSocket::ControlSocket(ControlSocket&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), pending_(std::move(other.pending_)) {}

void ControlSocket::Send(const nlohmann::json& message) {
  const std::string line = message.dump() + "\n";
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t n = send(fd_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // the next Receive() finds the other side gone
    sent += static_cast<size_t>(n);
  }
}

std::optional<nlohmann::json> ControlSocket::Receive(double timeout_seconds) {
  for (;;) {
    if (const size_t end = pending_.find('\n'); end != std::string::npos) {
      nlohmann::json message = nlohmann::json::parse(pending_.substr(0, end), nullptr, false);
      pending_.erase(0, end + 1);
      if (message.is_discarded()) return std::nullopt;
      return message;
    }
    pollfd p{fd_, POLLIN, 0};
    const int ready =
        poll(&p, 1, timeout_seconds > 0 ? static_cast<int>(timeout_seconds * 1e3) : -1);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return std::nullopt;
    char buffer[4096];
    const ssize_t n = recv(fd_, buffer, sizeof(buffer), 0);
    if (n <= 0) return std::nullopt;
    pending_.append(buffer, static_cast<size_t>(n));
  }
}

absl::StatusOr<ChildProcess> ChildProcess::Start(const std::vector<std::string>& command, int core,
                                                 const std::vector<std::string>& environment) {
  if (access(command[0].c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(command[0], ": ", std::strerror(errno)));
  }
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
    return absl::ErrnoToStatus(errno, "socketpair");
  }
  // dup2 of a descriptor onto itself would keep close-on-exec: move ours away from the agreed
  // number.
  for (int& fd : fds) {
    if (fd != kControlDescriptor) continue;
    fd = fcntl(fd, F_DUPFD_CLOEXEC, kControlDescriptor + 1);
    close(kControlDescriptor);
  }
  const int pid = fork();
  if (pid < 0) return absl::ErrnoToStatus(errno, "fork");
  if (pid == 0) Become(command, core, environment, fds[1]);
  close(fds[1]);
  return ChildProcess(pid, ControlSocket(fds[0]));
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), control_(std::move(other.control_)) {}

ChildProcess::~ChildProcess() {
  if (pid_ < 0) return;
  control_.reset();
  for (int i = 0; i < 200; ++i) {
    if (waitpid(pid_, nullptr, WNOHANG) != 0) return;
    usleep(10'000);
  }
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

absl::StatusOr<nlohmann::json> ChildProcess::Ask(const nlohmann::json& request,
                                                 double timeout_seconds) {
  control_->Send(request);
  return Expect(timeout_seconds);
}

absl::StatusOr<nlohmann::json> ChildProcess::Expect(double timeout_seconds) {
  auto reply = control_->Receive(timeout_seconds);
  if (!reply) {
    return absl::UnavailableError(
        absl::StrCat("the process died or said nothing for ", timeout_seconds, " s"));
  }
  if (reply->contains("error")) return absl::InternalError((*reply)["error"].get<std::string>());
  return *std::move(reply);
}

}  // namespace verbena::benchmarks
