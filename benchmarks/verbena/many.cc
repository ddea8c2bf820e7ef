// Many clients: idle connections that cost memory, and processes that compete for one server.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/verbena/verbena_peer.h"

namespace verbena::benchmarks {
namespace {

// Each window opens `outstanding` more connections, makes one call on each (Connect does), and
// leaves them idle.
class IdleConnections final : public Workload {
 public:
  explicit IdleConnections(const Params& params) : params_(params) {}
  absl::Status Run(Window& window) override {
    for (uint64_t i = 0; i < params_.outstanding(); ++i) {
      auto channel = verbena::benchmarks::Connect(params_);
      if (!channel.ok()) {
        return absl::Status(
            channel.status().code(),
            absl::StrCat("connection ", channels_.size() + 1, ": ", channel.status().message()));
      }
      channels_.push_back(*std::move(channel));
      window.AddOperations(1);
    }
    return absl::OkStatus();
  }
  double warm_up_seconds() const override { return 0; }

 private:
  Params params_;
  std::vector<std::shared_ptr<Channel>> channels_;
};

// `outstanding` processes, started anew for each window, call as fast as they can. The value is
// most calls / fewest calls.
class Fairness final : public Workload {
 public:
  explicit Fairness(const Params& params) : params_(params) {}
  absl::Status Run(Window& window) override {
    const size_t clients = params_.outstanding();
    void* shared = mmap(nullptr, clients * sizeof(uint64_t), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return absl::ResourceExhaustedError("mmap");
    auto* calls = static_cast<uint64_t*>(shared);
    std::vector<pid_t> children;
    for (size_t i = 0; i < clients; ++i) {
      const pid_t pid = fork();  // this process has started no thread of the library's
      if (pid == 0) Compete(calls[i], window.seconds());
      children.push_back(pid);
    }
    bool all_well = true;
    for (const pid_t pid : children) {
      int status = 0;
      all_well &= pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
    }
    const auto [fewest, most] = std::minmax_element(calls, calls + clients);
    window.SetValue(static_cast<double>(*most) /
                    static_cast<double>(std::max<uint64_t>(*fewest, 1)));
    munmap(shared, clients * sizeof(uint64_t));
    return all_well ? absl::OkStatus() : absl::InternalError("a client process failed");
  }
  double warm_up_seconds() const override { return 0; }

 private:
  [[noreturn]] void Compete(uint64_t& calls, double seconds) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto channel = verbena::benchmarks::Connect(params_);
    if (!channel.ok()) _exit(1);
    const pb::Benchmark::Stub stub(*std::move(channel));
    pb::EchoMessage request;
    request.set_payload(std::string(params_.payload_bytes(), 'x'));
    pb::EchoMessage reply;
    // Connected. The others are too by the end of this pause.
    usleep(200'000);
    for (Window window(seconds); !window.Over(); ++calls) {
      if (!stub.Echo(request).GetInto(reply).ok()) _exit(1);
    }
    _exit(0);
  }
  Params params_;
};

}  // namespace

WorkloadPtr StartIdleConnections(const Params& params) {
  return std::make_unique<IdleConnections>(params);
}
WorkloadPtr StartFairness(const Params& params) { return std::make_unique<Fairness>(params); }

}  // namespace verbena::benchmarks
