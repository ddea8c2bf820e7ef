#include "benchmarks/harness/runner.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/harness/clock.h"
#include "benchmarks/harness/control.h"

namespace verbena::benchmarks {
namespace {

constexpr double kStartSecondsMax = 30;
constexpr double kWindowSecondsMax = 30;
// A class with fewer windows than this, of ours or of a peer, gets no ratio.
constexpr size_t kWindowsMin = 3;

// Time that cores were not idle since boot, the hypervisor's share included.
double BusySeconds(const std::set<int>& cores) {
  double ticks = 0;
  std::ifstream in("/proc/stat");
  for (std::string line; std::getline(in, line);) {
    int core = 0;
    double user = 0, nice = 0, system = 0, idle = 0, io = 0, irq = 0, soft = 0, steal = 0;
    if (std::sscanf(line.c_str(), "cpu%d %lf %lf %lf %lf %lf %lf %lf %lf", &core, &user, &nice,
                    &system, &idle, &io, &irq, &soft, &steal) == 9 &&
        cores.count(core) != 0) {
      ticks += user + nice + system + irq + soft + steal;
    }
  }
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// How often a receiver of this machine's RDMA devices was not ready, as far as they count it: once
// or, where both ends count, twice.
uint64_t RnrEvents() {
  uint64_t events = 0;
  std::error_code error;
  for (const auto& device : std::filesystem::directory_iterator("/sys/class/infiniband", error)) {
    for (const auto& port : std::filesystem::directory_iterator(device.path() / "ports", error)) {
      for (const auto& counter :
           std::filesystem::directory_iterator(port.path() / "hw_counters", error)) {
        const std::string name = counter.path().filename();
        if (!absl::StrContains(name, "rnr") && name != "out_of_buffer") continue;
        uint64_t value = 0;
        if (std::ifstream(counter.path()) >> value) events += value;
      }
    }
  }
  return events;
}

// The two processes of one side.
class Pair {
 public:
  Pair(const Side& side, const Row& row, const RunOptions& options) : row_(row), options_(options) {
    result_.side = side;
    const absl::Status status = Start();
    if (!status.ok()) Skip(status);
  }
  ~Pair() {
    client_.reset();
    server_.reset();
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }
  Pair(const Pair&) = delete;

  bool alive() const { return result_.skipped.empty(); }
  std::vector<Sample> kept() const { return Kept(row_, samples_, options_.foreign_max); }
  SideResult TakeResult() {
    result_.kept = kept();
    result_.dropped = samples_.size() - result_.kept.size();
    return std::move(result_);
  }
  void RunWindow();

 private:
  int server_core() const { return row_.same_core ? options_.client_core : options_.server_core; }
  absl::Status Start();
  // The server's counters: with sign -1 before the window, 1 after it.
  absl::Status AddCounters(double sign, Sample& sample, double& growth);
  absl::StatusOr<Sample> Measure();
  std::vector<std::string> Command(const std::string& role, const std::string& address) const;
  double Line() const { return MeasureLineNs(options_.client_core, options_.server_core); }
  void Skip(const absl::Status& why) { result_.skipped = std::string(why.message()); }

  const Row& row_;
  const RunOptions& options_;
  std::string directory_;
  std::optional<ChildProcess> server_;
  std::optional<ChildProcess> client_;
  std::vector<Sample> samples_;
  SideResult result_;
};

std::vector<std::string> Pair::Command(const std::string& role, const std::string& address) const {
  std::map<std::string, std::string> params = result_.side.params;
  params["transport"] = row_.transport;
  params["payload_bytes"] = absl::StrCat(row_.payload_bytes);
  params["outstanding"] = absl::StrCat(row_.outstanding);
  params["directory"] = directory_;
  params["server_core"] = absl::StrCat(server_core());
  params["client_core"] = absl::StrCat(options_.client_core);
  if (!address.empty()) params["address"] = address;
  std::vector<std::string> command = {options_.program_directory + "/" + result_.side.program,
                                      role};
  for (const auto& [key, value] : params) command.push_back(absl::StrCat(key, "=", value));
  return command;
}

absl::Status Pair::Start() {
  const Side& side = result_.side;
  if (access((options_.program_directory + "/" + side.program).c_str(), X_OK) != 0) {
    return absl::NotFoundError(side.program + " is not built");
  }
  std::vector<std::string> environment = side.environment;
  if (!side.preload.empty()) {
    // Loaded here only to learn whether the children will find it.
    if (void* library = dlopen(side.preload.c_str(), RTLD_LAZY | RTLD_LOCAL)) {
      dlclose(library);
    } else {
      return absl::NotFoundError(absl::StrCat(side.preload, " is not installed"));
    }
    environment.push_back("LD_PRELOAD=" + side.preload);
  }
  char name[] = "/tmp/verbena-benchmark-XXXXXX";
  if (!mkdtemp(name)) return absl::InternalError("mkdtemp failed in /tmp");
  directory_ = name;
  auto server = ChildProcess::Start(Command("server", ""), server_core(), environment);
  if (!server.ok()) return server.status();
  server_.emplace(*std::move(server));
  auto ready = server_->Expect(kStartSecondsMax);
  if (!ready.ok()) return absl::InternalError(absl::StrCat("server: ", ready.status().message()));
  const std::string address = (*ready)["address"];
  auto client = ChildProcess::Start(Command("client", address), options_.client_core, environment);
  if (!client.ok()) return client.status();
  client_.emplace(*std::move(client));
  ready = client_->Expect(kStartSecondsMax);
  if (!ready.ok()) return absl::InternalError(absl::StrCat("client: ", ready.status().message()));
  return absl::OkStatus();
}

absl::Status Pair::AddCounters(double sign, Sample& sample, double& growth) {
  auto server = server_->Ask({{"counters", row_.counter}}, kWindowSecondsMax);
  if (!server.ok()) return server.status();
  // The client's own window tells its switches and allocations, without those of its warm-up.
  auto client = client_->Ask({{"counters", row_.counter}}, kWindowSecondsMax);
  if (!client.ok()) return client.status();
  sample.switches += sign * server->value("switches", 0.0);
  growth += sign * server->value(row_.counter, 0.0);
  const double own = server->value("cpu_seconds", 0.0) + client->value("cpu_seconds", 0.0);
  sample.foreign += sign * (BusySeconds({server_core(), options_.client_core}) - own);
  return absl::OkStatus();
}

absl::StatusOr<Sample> Pair::Measure() {
  Sample sample;
  double growth = 0;
  const uint64_t start = NowNanoseconds();
  if (absl::Status s = AddCounters(-1, sample, growth); !s.ok()) return s;
  auto window = client_->Ask(
      {{"seconds", row_.window_seconds > 0 ? row_.window_seconds : options_.window_seconds}},
      kWindowSecondsMax);
  if (!window.ok()) return window.status();
  if (absl::Status s = AddCounters(1, sample, growth); !s.ok()) return s;
  const double cores = row_.same_core ? 1 : 2;
  sample.foreign /= cores * static_cast<double>(NowNanoseconds() - start) / 1e9;
  const auto number = [&window](const char* name) { return window->value(name, 0.0); };
  sample.switches += number("switches");
  sample.p99 = number("p99");
  switch (row_.metric) {
    case Metric::kLatency:
      sample.value = number("p50");
      break;
    case Metric::kP99:
      sample.value = number("p99");
      break;
    case Metric::kRate:
      sample.value = number("rate");
      break;
    case Metric::kThroughput:
      sample.value = number("throughput");
      break;
    case Metric::kValue:
    case Metric::kGain:
      sample.value = number("value");
      break;
    case Metric::kCounter:
      if (row_.counter == "allocations") growth += number("allocations");
      if (number("operations") == 0) return absl::InternalError("the window had no operation");
      sample.value = growth / number("operations");
      break;
  }
  return sample;
}

void Pair::RunWindow() {
  const double before = Line();
  const uint64_t rnr_before = RnrEvents();
  auto sample = Measure();
  result_.rnr_events += RnrEvents() - rnr_before;
  if (!sample.ok()) {
    Skip(sample.status());
    return;
  }
  const double after = Line();
  sample->line_ns = 0.5 * (before + after);
  sample->line_class =
      Classless(row_) ? LineClass::kNear : Classify(before, after, options_.near_below_ns);
  samples_.push_back(*sample);
}

// Whether every live side has enough windows in a class of ours (or of the first live side, when
// ours is absent).
bool Enough(const std::vector<std::unique_ptr<Pair>>& pairs) {
  for (const LineClass c : {LineClass::kNear, LineClass::kFar}) {
    bool all = true;
    for (const auto& p : pairs) {
      if (p->alive() && Summarize(p->kept(), c).windows < kWindowsMin) all = false;
    }
    if (all) return true;
  }
  return false;
}

}  // namespace

RowResult RunRow(const Row& row, const RunOptions& options) {
  std::vector<std::unique_ptr<Pair>> pairs;
  pairs.push_back(std::make_unique<Pair>(row.ours, row, options));
  for (const Side& peer : row.peers) pairs.push_back(std::make_unique<Pair>(peer, row, options));
  const int wanted = row.windows > 0 ? row.windows : options.windows;
  const int most = row.windows > 0 ? row.windows : 2 * options.windows;
  for (int round = 0; round < most; ++round) {
    if (round >= wanted && Enough(pairs)) break;
    for (const auto& pair : pairs) {
      if (pair->alive()) pair->RunWindow();
    }
  }
  RowResult result{row, pairs[0]->TakeResult(), {}};
  for (size_t i = 1; i < pairs.size(); ++i) result.peers.push_back(pairs[i]->TakeResult());
  return result;
}

}  // namespace verbena::benchmarks
