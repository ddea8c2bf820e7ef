#include "rpc/reactor/reactors.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "rpc/base/check.h"
#include "rpc/memory/helpers.h"
#include "rpc/memory/pool.h"
#include "rpc/reactor/service_threads.h"
#include "rpc/topology/topology.h"
#include "verbena/runtime.h"

namespace verbena {
namespace reactor {
namespace {

struct Process {
  absl::Mutex mutex;
  RuntimeOptions options ABSL_GUARDED_BY(mutex);
  std::vector<Reactor*> reactors;  // written once under the mutex, before `started`
  std::atomic<bool> started{false};
  std::atomic<uint32_t> next{0};
};

Process& TheProcess() {
  static Process* const process = new Process;
  return *process;
}

bool OnAnyReactor() {
  if (Reactor::Current() != nullptr) return true;
  const Process& process = TheProcess();
  if (!process.started.load(std::memory_order_acquire)) return false;
  for (const Reactor* reactor : process.reactors) {
    if (reactor->InSeat()) return true;
  }
  return false;
}

void StartLocked(Process& process) ABSL_EXCLUSIVE_LOCKS_REQUIRED(process.mutex) {
  memory::SetHelperThreads({&OnAnyReactor, [](memory::Job job) { PostDisposal(std::move(job)); },
                            &OnSetupThread, [](memory::Job job) { PostSetup(std::move(job)); },
                            &OnGrowthThread, [](memory::Job job) { PostGrowth(std::move(job)); }});
  const RuntimeOptions options = process.options;
  const absl::Span<const topology::Node> nodes = topology::Topology::Get().nodes();
  const size_t count = options.reactors() > 0 ? options.reactors() : nodes.size();
  for (size_t i = 0; i < count; ++i) {
    ReactorOptions one;
    one.name = absl::StrCat("verbena-", i);
    one.numa_node = nodes[i % nodes.size()].index;
    one.pin = options.pin();
    one.spin = options.spin();
    one.stall_report = options.stall_report();
    absl::StatusOr<std::unique_ptr<Reactor>> made = Reactor::Create(one);
    VERBENA_CHECK(made.ok(), "cannot start a reactor: ", made.status().ToString());
    process.reactors.push_back(made->release());
  }
  process.started.store(true, std::memory_order_release);
}

}  // namespace

absl::Span<Reactor* const> Reactors() {
  Process& process = TheProcess();
  if (!process.started.load(std::memory_order_acquire)) {
    absl::MutexLock lock(&process.mutex);
    if (!process.started.load(std::memory_order_relaxed)) StartLocked(process);
  }
  return process.reactors;
}

Reactor& DefaultReactor() { return *Reactors()[0]; }

Reactor& NextReactor() {
  if (Reactor* here = Reactor::Current()) return *here;
  absl::Span<Reactor* const> all = Reactors();
  return *all[TheProcess().next.fetch_add(1, std::memory_order_relaxed) % all.size()];
}

}  // namespace reactor

absl::Status InitRuntime(const RuntimeOptions& options) {
  reactor::Process& process = reactor::TheProcess();
  if (options.reactors() < 0 || options.reactors() > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("set_reactors(", options.reactors(), "): 0 to 1024 are possible"));
  }
  if (options.spin() < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("set_spin(", absl::FormatDuration(options.spin()), "): at least 0 is needed"));
  }
  if (options.stall_report() <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("set_stall_report(",
                                                   absl::FormatDuration(options.stall_report()),
                                                   "): more than 0 is needed"));
  }
  absl::MutexLock lock(&process.mutex);
  if (process.started.load(std::memory_order_relaxed)) {
    return absl::FailedPreconditionError(
        "InitRuntime: the runtime already runs; call it before the first Channel, Server or Call");
  }
  if (options.memory_bytes_max() != 0) {
    absl::Status set = memory::SetPoolBytesMax(options.memory_bytes_max());
    if (!set.ok()) return set;
  }
  process.options = options;
  return absl::OkStatus();
}

}  // namespace verbena
