// The ways in which a GPU's tensor goes from one process to another, and what each costs.
//   bench_paths [MIB]     a table; 1,024 MiB unless it says otherwise. Without a GPU: exit status
//   77
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/paths/owner.h"
#include "benchmarks/paths/plain_socket.h"
#include "paths.verbena.h"
#include "rpc/base/check.h"
#include "rpc/gpu/driver.h"
#include "tests/gpu/machine/user_memory.h"
#include "verbena/gpu.h"
#include "verbena/verbena.h"

namespace verbena::benchmarks::paths {
namespace {

constexpr int kTimes = 5;

// What is known of a way without measuring it: how often the bytes are copied on their way, by DMA
// or the CPU, and how often by the CPU, which reads and writes each byte then. The kernel's copies
// into and out of a socket are the CPU's.
struct Way {
  std::string name;
  int copies = 0, cpu_copies = 0;
};

// One transfer into the destination; its path, for people.
using Transfer = std::function<absl::StatusOr<std::string>()>;

class Table {
 public:
  explicit Table(size_t bytes) : bytes_(bytes) {
    int gpus = 0;
    (*gpu::LoadDriver())->cuDeviceGetCount(&gpus);
    to_ = gpus > 1 ? 1 : 0;
    const Shape shape(static_cast<int64_t>(bytes));
    into_ = *Tensor::Empty(kUInt8, shape, Device::Cuda(to_));
    Make(false);
  }

  void Run() {
    OverTcp();
    Measure({"staging in shared host memory, by hand", 2, 0}, Fetch("shm", true));
    Measure({"direct peer copy", 1, 0}, Fetch("shm", false));
    Measure({"staged RDMA, by hand", 3, 0}, FetchByHand("verbs"));
    Measure({"GPUDirect RDMA", 1, 0}, Fetch("verbs", false, Path::kGdrRead));
    Make(true);
    Measure({"staging in shared host memory, memory of a pool", 2, 0}, Fetch("shm", false));
  }

  void Print() const {
    std::printf("\n%zu MiB from a process's cuda:0 to another's cuda:%d\n", bytes_ >> 20, to_);
    std::printf("%-48s %7s %7s %8s %12s %9s  %s\n", "way", "GB/s", "copies", "by CPU",
                "CPU touches", "CPU s/GB", "path");
    for (const std::string& row : rows_) std::printf("%s\n", row.c_str());
    std::printf("%s\n", goal_.c_str());
  }

 private:
  void OverTcp() {
    PlainReader plain(port_, bytes_);
    const auto by_socket = [&](PlainWay way) {
      return [this, &plain, way]() -> absl::StatusOr<std::string> {
        VERBENA_RETURN_IF_ERROR(plain.Read(way, to_, into_.mutable_data()));
        return std::string("plain socket");
      };
    };
    Measure({"pageable staging over TCP", 6, 4}, by_socket(PlainWay::kGpu));
    const double staged =
        Measure({"pinned staging over TCP, pipelined", 4, 2}, Fetch("tcp", false));
    const double cold =
        Measure({"  the socket alone, host to host", 2, 2}, by_socket(PlainWay::kHostOnly), false);
    const double hot = Measure({"  the socket alone, out of and into one MiB", 2, 2},
                               by_socket(PlainWay::kHotOnly), false);
    if (staged == 0 || cold == 0 || hot == 0) return;
    char goal[200];
    std::snprintf(goal, sizeof goal,
                  "pinned staging of the socket alone: %.2f through as much memory, %.2f of one "
                  "MiB over and over",
                  staged / cold, staged / hot);
    goal_ = goal;
  }

  void Make(bool pool) {
    ::paths::Wanted wanted;
    wanted.set_bytes(bytes_);
    wanted.set_pool(pool);
    const auto made = ::paths::Owner::Stub(channel("tcp")).Make(wanted).Get();
    VERBENA_CHECK(made.ok(), made.status().ToString());
    port_ = static_cast<uint16_t>(made->port());
  }

  std::shared_ptr<Channel> channel(const char* transport) const {
    return Channel::Create(owner_.address(), ChannelOptions()
                                                 .set_require_transport(transport)
                                                 .set_connect_timeout(absl::Seconds(10))
                                                 .set_default_timeout(absl::Seconds(60)));
  }

  // Host memory at both ends, of which neither is copied before all of it is there.
  Transfer FetchByHand(const char* transport) {
    const ::paths::Owner::Stub stub(channel(transport));
    return [this, stub]() -> absl::StatusOr<std::string> {
      ::paths::Way way;
      way.set_staged(true);
      VERBENA_ASSIGN_OR_RETURN(auto given, stub.Give(way).Get());
      auto call = given.Fetch(given->tensor());
      VERBENA_ASSIGN_OR_RETURN(const Tensor host, call.Get());
      gpu_test::CopyNow(to_, into_.mutable_data(), host.data(), bytes_);
      return std::string(PathName(call.report().path));
    };
  }

  Transfer Fetch(const char* transport, bool staged, Path require = Path::kNone) {
    const ::paths::Owner::Stub stub(channel(transport));
    return [this, stub, staged, require]() -> absl::StatusOr<std::string> {
      ::paths::Way way;
      way.set_staged(staged);
      VERBENA_ASSIGN_OR_RETURN(auto given, stub.Give(way).Get());
      auto call = given.Fetch(given->tensor(), Placement::Into(into_).RequirePath(require));
      VERBENA_RETURN_IF_ERROR(call.Get().status());
      return std::string(PathName(call.report().path));
    };
  }

  double AllCpuSeconds() const {
    const auto usage = ::paths::Owner::Stub(channel("tcp")).Usage(::paths::UsageRequest()).Get();
    VERBENA_CHECK(usage.ok(), usage.status().ToString());
    return CpuSeconds() + usage->cpu_seconds();
  }

  // GB/s; 0: it is absent. Twice before the clock starts: the first opens what later ones find
  // open.
  double Measure(const Way& way, const Transfer& transfer, bool arrives = true) {
    gpu_test::FillAt(into_.device(), into_.mutable_data(), bytes_, 0);
    absl::StatusOr<std::string> path = transfer();
    if (path.ok()) path = transfer();
    if (!path.ok()) return Absent(way, path.status());
    if (arrives &&
        gpu_test::FirstWrong(into_.device(), into_.data(), bytes_, kSeed) != (bytes_ + 3) / 4) {
      return Absent(way, absl::DataLossError("the bytes are wrong"));
    }
    const double cpu_before = AllCpuSeconds();
    std::vector<double> seconds;
    for (int i = 0; i < kTimes && path.ok(); ++i) {
      const auto start = std::chrono::steady_clock::now();
      path = transfer();
      seconds.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    if (!path.ok()) return Absent(way, path.status());
    const double cpu = AllCpuSeconds() - cpu_before;
    std::sort(seconds.begin(), seconds.end());
    const double gigabytes = static_cast<double>(bytes_) / 1e9;
    char row[240];
    std::snprintf(row, sizeof row, "%-48s %7.2f %7d %8d %10dx %9.4f  %s", way.name.c_str(),
                  gigabytes / seconds[kTimes / 2], way.copies, way.cpu_copies, 2 * way.cpu_copies,
                  cpu / kTimes / gigabytes, path->c_str());
    Add(row);
    return gigabytes / seconds[kTimes / 2];
  }

  double Absent(const Way& way, const absl::Status& why) {
    wrong_ = wrong_ || absl::IsDataLoss(why);
    char name[64];
    std::snprintf(name, sizeof name, "%-48s", way.name.c_str());
    // Without what mends it, and on which address.
    absl::string_view text = why.message();
    text = text.substr(0, text.find(". Mend it"));
    if (const size_t at = text.rfind(": verbs: "); at != text.npos) text.remove_prefix(at + 2);
    Add(absl::StrCat(name, " absent: ", text));
    return 0;
  }

  void Add(const std::string& row) {
    std::printf("%s\n", row.c_str());
    std::fflush(stdout);
    rows_.push_back(row);
  }

 public:
  bool wrong() const { return wrong_; }

 private:
  const size_t bytes_;
  const OwnerProcess owner_;
  int to_ = 0;
  uint16_t port_ = 0;
  Tensor into_;
  bool wrong_ = false;
  std::vector<std::string> rows_;
  std::string goal_;
};

int Main(size_t mib) {
  if (const absl::Status s = UseGpus(); !s.ok()) {
    std::printf("no paths: %s\n", std::string(s.message()).c_str());
    return 77;
  }
  Table table(mib << 20);
  table.Run();
  table.Print();
  return table.wrong() ? 1 : 0;
}

}  // namespace
}  // namespace verbena::benchmarks::paths

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "owner") == 0) {
    return verbena::benchmarks::paths::OwnerMain();
  }
  size_t mib = 1024;
  if (argc > 2 || (argc == 2 && (!absl::SimpleAtoi(argv[1], &mib) || mib == 0))) {
    std::fprintf(stderr, "usage: bench_paths [MIB]\n");
    return 2;
  }
  return verbena::benchmarks::paths::Main(mib);
}
