#include "tests/system/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "rpc/base/check.h"
#include "tests/catch.h"
#include "verbena/channel.h"

namespace verbena::system_test {

// posix_spawn, not fork: this process may use the library too.
Peer::Peer(std::vector<std::string> arguments, std::vector<std::string> prefix) {
  prefix.push_back(VERBENA_SYSTEM_PEER);
  for (std::string& argument : arguments) prefix.push_back(std::move(argument));
  std::vector<char*> argv;
  for (std::string& argument : prefix) argv.push_back(argument.data());
  argv.push_back(nullptr);
  int to[2], from[2];
  VERBENA_CHECK(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to[0], 0);
  posix_spawn_file_actions_adddup2(&actions, from[1], 1);
  const int error = posix_spawnp(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  VERBENA_CHECK(error == 0, argv[0], ": error ", error);
  close(to[0]);
  close(from[1]);
  in_ = to[1];
  out_ = from[0];
}

Peer::Peer(int connection) : in_(connection), out_(fcntl(connection, F_DUPFD_CLOEXEC, 0)) {
  VERBENA_CHECK(in_ >= 0 && out_ >= 0);
}

Peer::~Peer() {
  Kill();
  close(in_);
  close(out_);
}

void Peer::Send(absl::string_view line) {
  const std::string text = absl::StrCat(line, "\n");
  signal(SIGPIPE, SIG_IGN);
  (void)!write(in_, text.data(), text.size());
}

std::string Peer::Read(absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  for (;;) {
    const size_t end = buffered_.find('\n');
    if (end != std::string::npos) {
      std::string line = buffered_.substr(0, end);
      buffered_.erase(0, end + 1);
      return line;
    }
    const int64_t left = absl::ToInt64Milliseconds(until - absl::Now());
    pollfd ready{out_, POLLIN, 0};
    if (left < 0 || poll(&ready, 1, static_cast<int>(left) + 1) <= 0) return "";
    char bytes[4096];
    const ssize_t got = read(out_, bytes, sizeof bytes);
    if (got <= 0) return "";
    buffered_.append(bytes, static_cast<size_t>(got));
  }
}

void Peer::KillSoon() {
  if (pid_ > 0) kill(pid_, SIGKILL);
}

void Peer::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void Peer::Stop() {
  kill(pid_, SIGSTOP);
  int status;
  waitpid(pid_, &status, WUNTRACED);
  REQUIRE(WIFSTOPPED(status));
}

void Peer::Continue() { kill(pid_, SIGCONT); }

size_t Peer::descriptors() const { return DescriptorsOf(pid_); }

size_t DescriptorsOf(pid_t pid) {
  std::error_code error;
  size_t count = 0;
  for (std::filesystem::directory_iterator it(absl::StrCat("/proc/", pid, "/fd"), error), end;
       !error && it != end; it.increment(error)) {
    std::error_code gone;
    const std::string file = std::filesystem::read_symlink(it->path(), gone).string();
    if (file.find("memfd:verbena-slab") == std::string::npos) ++count;
  }
  return count;
}

double Peer::cpu_seconds() const {
  double ns = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator it(absl::StrCat("/proc/", pid_, "/task"), error), end;
       !error && it != end; it.increment(error)) {
    std::ifstream file(it->path() / "schedstat");
    double own = 0;
    file >> own;
    ns += own;
  }
  return ns / 1e9;
}

Peer::Memory Peer::memory() const {
  Memory memory;
  std::ifstream file(absl::StrCat("/proc/", pid_, "/smaps_rollup"));
  std::string word;
  while (file >> word) {
    if (word == "Rss:") file >> memory.resident;
    if (word == "Pss:") file >> memory.proportional;
  }
  std::ifstream status(absl::StrCat("/proc/", pid_, "/status"));
  while (status >> word) {
    if (word == "VmPTE:") status >> memory.page_tables;
  }
  memory.page_tables *= 1024;
  memory.resident *= 1024;
  memory.proportional *= 1024;
  return memory;
}

std::map<std::string, std::string> Fields(const std::string& line) {
  std::map<std::string, std::string> fields;
  for (absl::string_view part : absl::StrSplit(line, ' ')) {
    const std::pair<std::string, std::string> field = absl::StrSplit(part, absl::MaxSplits('=', 1));
    fields.insert(field);
  }
  return fields;
}

namespace {
std::vector<std::string> ServerArguments(const std::string& listen, std::vector<std::string> more) {
  more.insert(more.begin(), {"server", listen});
  return more;
}
uint64_t Number(const std::map<std::string, std::string>& fields, const char* name) {
  const auto found = fields.find(name);
  uint64_t value = 0;
  REQUIRE(found != fields.end());
  REQUIRE(absl::SimpleAtoi(found->second, &value));
  return value;
}
}  // namespace

ServerPeer::ServerPeer(const std::string& listen, std::vector<std::string> more)
    : Peer(ServerArguments(listen, std::move(more))), address_(Read()) {
  REQUIRE(address_ != "");
}

size_t ServerPeer::connections() const {
  uint32_t port = 0;
  REQUIRE(absl::SimpleAtoi(address_.substr(address_.rfind(':') + 1), &port));
  const std::string at = absl::StrFormat(":%04X", port);
  std::set<std::string> sockets;
  std::ifstream table("/proc/net/tcp");
  for (std::string line; std::getline(table, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() < 10 || !absl::EndsWith(words[1], at)) continue;
    if (words[3] != "0A") sockets.insert(absl::StrCat("socket:[", words[9], "]"));  // 0A: listens
  }
  size_t count = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator it(absl::StrCat("/proc/", pid(), "/fd"), error), end;
       !error && it != end; it.increment(error)) {
    std::error_code gone;
    count += sockets.count(std::filesystem::read_symlink(it->path(), gone).string());
  }
  return count;
}

ServerPeer::State ServerPeer::state() {
  const auto fields = Fields(Ask("state"));
  State state;
  state.links = Number(fields, "links");
  state.calls = Number(fields, "calls");
  state.leases = Number(fields, "leases");
  state.fetches = Number(fields, "fetches");
  state.used_bytes = Number(fields, "used");
  state.descriptors = descriptors();
  return state;
}

std::string ServerPeer::State::ToString() const {
  return absl::StrCat("links ", links, " calls ", calls, " leases ", leases, " fetches ", fetches,
                      " used ", used_bytes, " descriptors ", descriptors);
}

// What a process makes once, when it first needs it: a thread's event, a pool's file.
constexpr uint64_t kLaterDescriptors = 2;

bool ServerPeer::Returns(const State& before, absl::Duration timeout, std::string& difference) {
  State now;
  const bool back = Within(timeout, [&] {
    now = state();
    return now.links <= before.links && now.calls <= before.calls && now.leases <= before.leases &&
           now.fetches <= before.fetches && now.used_bytes <= before.used_bytes &&
           now.descriptors <= before.descriptors + kLaterDescriptors;
  });
  difference = absl::StrCat("before: ", before.ToString(), "; now: ", now.ToString());
  return back;
}

void ServerPeer::ExpectReturn(const State& before, absl::Duration timeout) {
  std::string difference;
  const bool back = Returns(before, timeout, difference);
  INFO(difference);
  REQUIRE(back);
}

std::shared_ptr<Channel> ServerPeer::ChannelOver(const std::string& transport) const {
  return Channel::Create(address_, ChannelOptions().set_require_transport(transport));
}

}  // namespace verbena::system_test
