#pragma once
// The other processes of a system test: system_peer, started by exec, told what to do by lines and
// killed at bad moments; and what the kernel knows of them.
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "rpc/base/slowdown.h"

namespace verbena {
class Channel;
}

namespace verbena::system_test {

// Open in a process, but those of pools' slabs, which are kept for the next who needs memory.
size_t DescriptorsOf(pid_t pid);

class Peer {
 public:
  // Starts `prefix` system_peer `arguments`. It ends with this object, or with this process.
  explicit Peer(std::vector<std::string> arguments, std::vector<std::string> prefix = {});
  // One of another machine, over a connection, which becomes this object's.
  explicit Peer(int connection);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  pid_t pid() const { return pid_; }
  void Send(absl::string_view line);
  // The next line; "" when none came in time or the peer is gone.
  std::string Read(absl::Duration timeout = absl::Seconds(20) * kSlowdown);
  std::string Ask(absl::string_view line, absl::Duration timeout = absl::Seconds(20) * kSlowdown) {
    Send(line);
    return Read(timeout);
  }
  void Kill();      // SIGKILL, and waits for the end
  void KillSoon();  // SIGKILL
  void Stop();      // SIGSTOP, and waits until it stands
  void Continue();

  // ---- what the kernel says
  size_t descriptors() const;
  double cpu_seconds() const;  // of all threads
  // Resident bytes, the same with shared pages divided among those who map them, and what the
  // kernel needs to map them.
  struct Memory {
    double resident = 0;
    double proportional = 0;
    double page_tables = 0;
  };
  Memory memory() const;

 private:
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  std::string buffered_;
};

// "a=1 b=2 ..." of a peer's answer.
std::map<std::string, std::string> Fields(const std::string& line);

// A server, and what it says of itself.
class ServerPeer : public Peer {
 public:
  explicit ServerPeer(const std::string& listen = "127.0.0.1:0",
                      std::vector<std::string> more = {});
  const std::string& address() const { return address_; }
  // TCP connections over IPv4 to its address that it has accepted and not closed.
  size_t connections() const;
  // Of this process, to this server.
  std::shared_ptr<Channel> ChannelOver(const std::string& transport) const;

  struct State {
    uint64_t links = 0, calls = 0, leases = 0, fetches = 0, used_bytes = 0, descriptors = 0;
    std::string ToString() const;
  };
  State state();
  // Whether within `timeout` nothing is there that was not in `before`; `difference` says both.
  bool Returns(const State& before, absl::Duration timeout, std::string& difference);
  void ExpectReturn(const State& before, absl::Duration timeout = absl::Seconds(2));

 private:
  std::string address_;
};

class ClientPeer : public Peer {
 public:
  // `transport`: "any" or the one that it requires.
  ClientPeer(const std::string& address, const std::string& transport,
             std::vector<std::string> prefix = {})
      : Peer({"client", address, transport}, std::move(prefix)) {}
};

// Waits for something that another process brings about.
template <class F>
bool Within(absl::Duration timeout, F condition) {
  const absl::Time until = absl::Now() + timeout * kSlowdown;
  while (absl::Now() < until) {
    if (condition()) return true;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return condition();
}

}  // namespace verbena::system_test
