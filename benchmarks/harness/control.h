#pragma once
// Lines of JSON over a socket pair, and the child process at its other end.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace verbena::benchmarks {

// Where a participant finds its end.
inline constexpr int kControlDescriptor = 3;

class ControlSocket {
 public:
  explicit ControlSocket(int fd) : fd_(fd) {}
  ~ControlSocket();
  ControlSocket(ControlSocket&& other) noexcept;
  ControlSocket& operator=(ControlSocket&&) = delete;

  void Send(const nlohmann::json& message);
  // Blocks; nothing when the other side is gone, sends no JSON or is silent for `timeout_seconds`
  // (0: for ever).
  std::optional<nlohmann::json> Receive(double timeout_seconds = 0);

 private:
  int fd_;
  std::string pending_;
};

// A child pinned to a core before its first instruction. The destructor closes its socket, gives it
// 2 s to go, kills it.
class ChildProcess {
 public:
  // `environment`: NAME=value, added to ours.
  static absl::StatusOr<ChildProcess> Start(const std::vector<std::string>& command, int core,
                                            const std::vector<std::string>& environment);
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;

  // One request and its reply; the reply's "error" and the child's death become the status.
  absl::StatusOr<nlohmann::json> Ask(const nlohmann::json& request, double timeout_seconds);
  absl::StatusOr<nlohmann::json> Expect(double timeout_seconds);

 private:
  ChildProcess(int pid, ControlSocket control) : pid_(pid), control_(std::move(control)) {}
  int pid_;
  std::optional<ControlSocket> control_;
};

}  // namespace verbena::benchmarks
