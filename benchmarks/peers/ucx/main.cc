// UCX as a peer: its own ucx_perftest, a server and a client process per window, pinned to the two
// cores. Workload = name of the perftest (ucp_am_lat, ucp_am_bw, ucp_get, …). Start-up is 0.1 s and
// outside its own clock. The line may move meanwhile; the driver's measurement before and after
// covers the whole.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "benchmarks/harness/tool.h"
#include "benchmarks/harness/workload.h"

namespace verbena::benchmarks {
namespace {

constexpr char kPerftest[] = "/usr/bin/ucx_perftest";

// The last line of -v -f output: iterations, percentile, average and overall latency in us (half a
// round trip), average and overall MB/s (2^20), average and overall messages per second.
struct Result {
  double iterations, percentile_us, average_us, overall_us, average_mib, overall_mib, average_rate,
      overall_rate;
};

absl::StatusOr<Result> Parse(const std::string& output) {
  const std::vector<std::string> lines = absl::StrSplit(output, '\n', absl::SkipWhitespace());
  if (lines.empty()) return absl::InternalError("ucx_perftest printed nothing");
  std::array<double, 8> numbers{};
  const std::vector<std::string> words = absl::StrSplit(lines.back(), ',');
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (words.size() != numbers.size() || !absl::SimpleAtod(words[i], &numbers[i])) {
      return absl::InternalError("ucx_perftest: cannot read \"" + lines.back() + "\"");
    }
  }
  return Result{numbers[0], numbers[1], numbers[2], numbers[3],
                numbers[4], numbers[5], numbers[6], numbers[7]};
}

class Perftest final : public Workload {
 public:
  explicit Perftest(const Params& params) : params_(params) {
    if (params.transport() == "tcp") {
      setenv("UCX_TLS", "tcp,self", 1);
      setenv("UCX_NET_DEVICES", "lo", 1);
    } else {
      setenv("UCX_TLS", "shm,self", 1);
    }
    setenv("UCX_LOG_LEVEL", "error", 1);
  }

  absl::Status Run(Window& window) override {
    const auto iterations = static_cast<uint64_t>(std::max(100.0, rate_ * window.seconds()));
    auto output = RunBoth(iterations);
    if (!output.ok()) return output.status();
    const auto result = Parse(*output);
    if (!result.ok()) return result.status();
    rate_ = result->overall_rate;
    const bool latency = absl::EndsWith(params_.workload(), "_lat");
    if (latency) rate_ /= 2;  // it counts both directions as messages
    window.SetMeasured(2e3 * result->percentile_us, result->overall_rate,
                       result->overall_mib * (1 << 20));
    window.AddOperations(iterations);
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<std::string> RunBoth(uint64_t iterations) {
    const int port = FreePort();
    std::vector<std::string> command = {kPerftest, "-t", params_.workload(), "-p",
                                        absl::StrCat(port)};
    const std::vector<std::string> server = command;
    // Few warm-up iterations: the pages and caches are warm after hundreds.
    for (const std::string& word :
         {std::string("-s"), absl::StrCat(params_.payload_bytes()), std::string("-n"),
          absl::StrCat(iterations), std::string("-w"),
          absl::StrCat(std::min<uint64_t>(1000, iterations / 10 + 1)), std::string("-f"),
          std::string("-v"), std::string("-R"), std::string("50")}) {
      command.push_back(word);
    }
    command.insert(command.begin() + 1, "127.0.0.1");
    return RunTool(server, command, port, static_cast<int>(params_.Number("server_core")),
                   static_cast<int>(params_.Number("client_core", 1)));
  }

  Params params_;
  double rate_ = 20'000;  // iterations per second, learnt from window to window
};

absl::StatusOr<std::unique_ptr<Service>> StartService(const Params&) {
  if (access(kPerftest, X_OK) != 0)
    return absl::NotFoundError("ucx_perftest is not installed (package ucx-utils)");
  return std::make_unique<AddressOnly>("");
}

absl::StatusOr<std::unique_ptr<Workload>> StartWorkload(const Params& params) {
  return std::make_unique<Perftest>(params);
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) {
  return verbena::benchmarks::ParticipantMain(argc, argv, verbena::benchmarks::StartService,
                                              verbena::benchmarks::StartWorkload);
}
