// perftest as a peer: ib_send_lat, ib_send_bw or ib_read_bw (the workload), a server and a client
// process per window on the port and GID that the library chooses.
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "benchmarks/harness/tool.h"
#include "benchmarks/harness/workload.h"
#include "rpc/fabric/verbs/device.h"
#include "rpc/fabric/verbs/settings.h"

namespace verbena::benchmarks {
namespace {

namespace verbs = fabric::verbs;

constexpr char kFolder[] = "/usr/bin/";
constexpr double kIterationsMin = 5;  // perftest's own limit
constexpr uint64_t kBytesUnderWay = 64 << 20;

std::vector<std::string> PortArguments(const verbs::PortAddress& port) {
  std::vector<std::string> arguments = {"-d", std::string(port.device->name()), "-i",
                                        absl::StrCat(port.port)};
  if (port.ethernet) {
    arguments.insert(arguments.end(), {"-x", absl::StrCat(port.gid_index)});
  }
  return arguments;
}

// The line of results is the last with nothing but numbers: bytes, iterations, and then, in us, of
// half a round trip, least, largest, typical (the median), mean, deviation, 99 %; or MiB/s at
// their best, MiB/s, millions of messages per second.
absl::StatusOr<std::vector<double>> Parse(const std::string& output) {
  std::vector<double> numbers;
  for (absl::string_view line : absl::StrSplit(output, '\n')) {
    std::vector<double> found;
    for (absl::string_view word :
         absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipWhitespace())) {
      double number = 0;
      if (!absl::SimpleAtod(word, &number)) {
        found.clear();
        break;
      }
      found.push_back(number);
    }
    if (found.size() >= 5) numbers = found;
  }
  if (numbers.empty()) return absl::InternalError("cannot read what perftest printed");
  return numbers;
}

class Perftest final : public Workload {
 public:
  Perftest(const Params& params, const verbs::PortAddress& port)
      : params_(params), arguments_(PortArguments(port)) {}
  double warm_up_seconds() const override { return 0; }  // it learns its rate in the first window

  absl::Status Run(Window& window) override {
    if (rate_ == 0) {
      // So few that they are soon over whatever the device is.
      if (absl::Status s = Measure(latency() ? 100 : kIterationsMin, nullptr); !s.ok()) return s;
    }
    return Measure(std::max(kIterationsMin, rate_ * window.seconds()), &window);
  }

 private:
  bool latency() const { return params_.workload() == "ib_send_lat"; }
  uint64_t message_bytes() const {
    return params_.Number("message_bytes", params_.payload_bytes());
  }

  absl::Status Measure(double iterations, Window* window) {
    const auto count = static_cast<uint64_t>(iterations);
    auto output = RunBoth(count);
    if (!output.ok()) return output.status();
    const auto numbers = Parse(*output);
    if (!numbers.ok()) return numbers.status();
    const std::vector<double>& n = *numbers;
    if (latency() && n.size() >= 8) {
      rate_ = 1e6 / (2 * n[5]);
      if (window != nullptr) window->SetMeasured(2e3 * n[4], rate_, 0, 2e3 * n[7]);
    } else if (!latency()) {
      rate_ = n[4] * 1e6;
      if (window != nullptr) window->SetMeasured(0, rate_, n[3] * (1 << 20));
    } else {
      return absl::InternalError("ib_send_lat printed too few columns");
    }
    if (window != nullptr) window->AddOperations(count);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> RunBoth(uint64_t iterations) {
    const int port = FreePort();
    std::vector<std::string> command = {kFolder + params_.workload()};
    command.insert(command.end(), arguments_.begin(), arguments_.end());
    for (const std::string& word :
         {std::string("-F"), std::string("-s"), absl::StrCat(message_bytes()), std::string("-n"),
          absl::StrCat(iterations), std::string("-p"), absl::StrCat(port)}) {
      command.push_back(word);
    }
    if (!latency()) {
      // More under way, and a slow device has not begun with the last when its time is over.
      const uint64_t depth = std::clamp<uint64_t>(kBytesUnderWay / message_bytes(), 1, 128);
      command.insert(command.end(), {"-t", absl::StrCat(depth)});
    }
    std::vector<std::string> client = command;
    client.push_back("127.0.0.1");
    return RunTool(command, client, port, static_cast<int>(params_.Number("server_core")),
                   static_cast<int>(params_.Number("client_core", 1)));
  }

  Params params_;
  std::vector<std::string> arguments_;
  double rate_ = 0;  // iterations per second, learnt from window to window
};

absl::StatusOr<std::unique_ptr<Service>> StartService(const Params& params) {
  if (access((kFolder + params.workload()).c_str(), X_OK) != 0) {
    return absl::NotFoundError(params.workload() + " is not installed (package perftest)");
  }
  return std::make_unique<AddressOnly>("");
}

absl::StatusOr<std::unique_ptr<Workload>> StartWorkload(const Params& params) {
  auto port = verbs::ChoosePort(-1, verbs::Settings::FromEnvironment().filter);
  if (!port.ok()) return port.status();
  return std::make_unique<Perftest>(params, *port);
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) {
  return verbena::benchmarks::ParticipantMain(argc, argv, verbena::benchmarks::StartService,
                                              verbena::benchmarks::StartWorkload);
}
