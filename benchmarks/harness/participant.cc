// A participant's side of the control socket: one JSON object per line, each request answered by
// one line.
#include <arpa/inet.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "benchmarks/harness/allocation_counter.h"
#include "benchmarks/harness/control.h"
#include "benchmarks/harness/workload.h"

namespace verbena::benchmarks {
namespace {

// Involuntary context switches of this process and of the children it has waited for.
int64_t InvoluntarySwitches() {
  rusage self{};
  rusage children{};
  getrusage(RUSAGE_SELF, &self);
  getrusage(RUSAGE_CHILDREN, &children);
  return self.ru_nivcsw + children.ru_nivcsw;
}

// Processor time of the same.
double CpuSeconds() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage used{};
    getrusage(who, &used);
    for (const timeval& t : {used.ru_utime, used.ru_stime}) {
      seconds += static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
    }
  }
  return seconds;
}

// Memory of this process, shared pages divided among those who map them. Takes milliseconds.
double ProportionalBytes() {
  std::ifstream in("/proc/self/smaps_rollup");
  std::string word;
  while (in >> word) {
    double kib = 0;
    if (word == "Pss:" && in >> kib) return kib * 1024;
  }
  return 0;
}

nlohmann::json Counters(const std::string& wanted) {
  nlohmann::json out;
  out["switches"] = InvoluntarySwitches();
  out["cpu_seconds"] = CpuSeconds();
  out["allocations"] = AllocationCount();
  if (wanted == "memory_bytes") out["memory_bytes"] = ProportionalBytes();
  if (wanted == "allocations") CountAllocations(true);
  return out;
}

nlohmann::json RunWindow(Workload& workload, double seconds) {
  if (workload.warm_up_seconds() > 0) {
    Window warm_up(workload.warm_up_seconds());
    if (absl::Status s = workload.Run(warm_up); !s.ok()) return {{"error", s.ToString()}};
  }
  const int64_t switches = InvoluntarySwitches();
  const uint64_t allocations = AllocationCount();
  Window window(seconds);
  LeaveOutAllocationsHere(false);
  absl::Status status = workload.Run(window);
  LeaveOutAllocationsHere(true);
  window.Close();
  if (!status.ok()) return {{"error", status.ToString()}};
  return {{"p50", window.PercentileNs(0.5)},
          {"p99", window.PercentileNs(0.99)},
          {"operations", window.operations()},
          {"rate", window.OperationsPerSecond()},
          {"throughput", window.BytesPerSecond()},
          {"value", window.value()},
          {"switches", InvoluntarySwitches() - switches},
          {"allocations", AllocationCount() - allocations}};
}

template <class T>
int Obey(absl::StatusOr<std::unique_ptr<T>> started, nlohmann::json ready) {
  ControlSocket control(kControlDescriptor);
  if (!started.ok()) ready = {{"error", started.status().ToString()}};
  control.Send(ready);
  if (!started.ok()) return 1;
  LeaveOutAllocationsHere(true);
  while (auto request = control.Receive()) {
    if (request->contains("counters")) {
      control.Send(Counters((*request)["counters"]));
      continue;
    }
    if constexpr (std::is_same_v<T, Workload>) {
      control.Send(RunWindow(**started, (*request)["seconds"]));
    }
  }
  // What the library does at exit is not under test, and the driver waits for nobody.
  if (getenv("VERBENA_BENCHMARK_ALLOCATION_SITES")) PrintAllocationSites();
  std::fflush(nullptr);
  _exit(0);
}

}  // namespace

std::string Params::Text(const std::string& key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? std::string() : it->second;
}

uint64_t Params::Number(const std::string& key, uint64_t fallback) const {
  uint64_t value = 0;
  return absl::SimpleAtoi(Text(key), &value) ? value : fallback;
}

double Window::PercentileNs(double fraction) const {
  if (latency_.count() != 0) return latency_.Percentile(fraction);
  return fraction == 0.5 ? measured_p50_ns_ : fraction == 0.99 ? measured_p99_ns_ : 0;
}

double Window::OperationsPerSecond() const {
  return measured_rate_ > 0 ? measured_rate_ : static_cast<double>(operations_) / elapsed_seconds_;
}

double Window::BytesPerSecond() const {
  return measured_bytes_rate_ > 0 ? measured_bytes_rate_
                                  : static_cast<double>(bytes_) / elapsed_seconds_;
}

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  int port = 0;
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0) {
    port = ntohs(address.sin_port);
  }
  close(fd);
  return port;
}

int ParticipantMain(int argc, char** argv, ServiceFactory start_service,
                    WorkloadFactory start_workload) {
  Params params;
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    if (equals == std::string::npos) {
      std::fprintf(stderr, "%s: want key=value, got \"%s\"\n", argv[0], word.c_str());
      return 2;
    }
    params.Set(word.substr(0, equals), word.substr(equals + 1));
  }
  rlimit files{};  // a thousand connections need more than the usual 1,024 descriptors
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  const std::string role = argc > 1 ? argv[1] : "";
  NanosecondsPerTick();
  if (role == "client") {
    return Obey(start_workload(params), {{"ready", true}});
  }
  if (role == "server") {
    auto service = start_service(params);
    const std::string address = service.ok() ? (*service)->address() : "";
    return Obey(std::move(service), {{"ready", true}, {"address", address}});
  }
  std::fprintf(stderr, "usage: %s server|client key=value... (started by the benchmark driver)\n",
               argv[0]);
  return 2;
}

}  // namespace verbena::benchmarks
