#pragma once
// What is measured: a Workload runs one window at a time in the client process, against a Service
// in the server process. Every peer and Verbena itself is one implementation of each; the driver
// starts both processes pinned to their cores, opens windows and compares.
//
//   class Echo final : public Workload {
//     absl::Status Run(Window& window) override {
//       while (!window.Over()) { uint64_t t = Ticks(); Call(); window.AddLatency(Ticks() - t); }
//       return absl::OkStatus();
//     }
//   };
//   int main(int argc, char** argv) { return ParticipantMain(argc, argv, StartService,
//   StartWorkload); }
//
// Between windows a participant must not use its core: it may spin for a moment, then it sleeps,
// since another participant is measured meanwhile.
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "benchmarks/harness/clock.h"
#include "benchmarks/harness/histogram.h"

namespace verbena::benchmarks {

// Settings of one side, as key=value on its command line.
class Params {
 public:
  void Set(const std::string& key, std::string value) { values_[key] = std::move(value); }
  // Empty, or `fallback`, when not set.
  std::string Text(const std::string& key) const;
  uint64_t Number(const std::string& key, uint64_t fallback = 0) const;
  const std::map<std::string, std::string>& values() const { return values_; }

  std::string workload() const { return Text("workload"); }
  std::string transport() const { return Text("transport"); }
  std::string address() const { return Text("address"); }  // of the service, given to the client
  std::string directory() const { return Text("directory"); }  // for sockets; private to the run
  uint64_t payload_bytes() const { return Number("payload_bytes"); }
  uint64_t outstanding() const { return Number("outstanding", 1); }

 private:
  std::map<std::string, std::string> values_;
};

// One window's clock and results. Not thread-safe: a workload with several threads merges before it
// returns.
class Window {
 public:
  explicit Window(double seconds)
      : start_(Ticks()), end_(start_ + TicksIn(seconds)), seconds_(seconds) {}

  bool Over() const { return Ticks() >= end_; }
  uint64_t end_ticks() const { return end_; }
  double seconds() const { return seconds_; }  // wanted

  // One operation and its time.
  void AddLatency(uint64_t ticks) {
    latency_.Record(static_cast<uint64_t>(static_cast<double>(ticks) * NanosecondsPerTick()));
    ++operations_;
  }
  void AddOperations(uint64_t operations) { operations_ += operations; }
  void AddBytes(uint64_t bytes) { bytes_ += bytes; }
  // A number that is not derived from time, such as a largest/smallest quotient.
  void SetValue(double value) { value_ = value; }
  // For tools that time themselves, such as ucx_perftest.
  void SetMeasured(double p50_ns, double operations_per_second, double bytes_per_second,
                   double p99_ns = 0) {
    measured_p50_ns_ = p50_ns;
    measured_p99_ns_ = p99_ns;
    measured_rate_ = operations_per_second;
    measured_bytes_rate_ = bytes_per_second;
  }
  // Called by the participant when Run has returned.
  void Close() {
    elapsed_seconds_ = static_cast<double>(Ticks() - start_) * NanosecondsPerTick() / 1e9;
  }

  double PercentileNs(double fraction) const;
  double OperationsPerSecond() const;
  double BytesPerSecond() const;
  double value() const { return value_; }
  uint64_t operations() const { return operations_; }

 private:
  uint64_t start_;
  uint64_t end_;
  double seconds_;
  Histogram latency_;
  uint64_t operations_ = 0;
  uint64_t bytes_ = 0;
  double elapsed_seconds_ = 0;
  double value_ = 0;
  double measured_p50_ns_ = 0;
  double measured_p99_ns_ = 0;
  double measured_rate_ = 0;
  double measured_bytes_rate_ = 0;
};

class Workload {
 public:
  virtual ~Workload() = default;
  // Works until window.Over(), all operations finished at return. An error ends this participant's
  // row.
  virtual absl::Status Run(Window& window) = 0;
  // Seconds of an unrecorded window before each one: wakes what slept meanwhile.
  virtual double warm_up_seconds() const { return 0.01; }
};

class Service {
 public:
  virtual ~Service() = default;
  // What the client connects to. Ready to be connected to once constructed.
  virtual std::string address() const = 0;
};

using ServiceFactory = absl::StatusOr<std::unique_ptr<Service>> (*)(const Params&);
using WorkloadFactory = absl::StatusOr<std::unique_ptr<Workload>> (*)(const Params&);

// `argv`: "server" or "client", then key=value. Obeys the driver on descriptor 3 until that closes.
int ParticipantMain(int argc, char** argv, ServiceFactory start_service,
                    WorkloadFactory start_workload);

// A TCP port of the loopback interface that was free a moment ago. 0 when there is none.
int FreePort();

// For services whose library needs no object of its own.
class AddressOnly final : public Service {
 public:
  explicit AddressOnly(std::string address) : address_(std::move(address)) {}
  std::string address() const override { return address_; }

 private:
  std::string address_;
};

}  // namespace verbena::benchmarks
