#include "verbena/runtime.h"

#include <sched.h>

#include <algorithm>
#include <string>

#include "absl/synchronization/notification.h"
#include "rpc/reactor/reactor.h"
#include "rpc/reactor/reactors.h"
#include "rpc/topology/topology.h"
#include "tests/catch.h"

namespace verbena {
namespace {

using Catch::ContainsSubstring;

std::string Refusal(const RuntimeOptions& options) {
  const absl::Status status = InitRuntime(options);
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST_CASE("settings of the runtime that are out of range are refused with value and limit",
          "[runtime]") {
  CHECK_THAT(Refusal(RuntimeOptions().set_reactors(-1)),
             ContainsSubstring("set_reactors(-1)") && ContainsSubstring("0 to 1024"));
  CHECK_THAT(Refusal(RuntimeOptions().set_reactors(1025)), ContainsSubstring("set_reactors(1025)"));
  CHECK_THAT(Refusal(RuntimeOptions().set_spin(-absl::Milliseconds(3))),
             ContainsSubstring("set_spin(-3ms)"));
  CHECK_THAT(Refusal(RuntimeOptions().set_stall_report(absl::ZeroDuration())),
             ContainsSubstring("set_stall_report(0)"));
  CHECK_THAT(Refusal(RuntimeOptions().set_memory_bytes_max(1'000)),
             ContainsSubstring("1000 bytes") && ContainsSubstring("33554432"));
}

TEST_CASE("settings come before the runtime runs", "[runtime]") {
  reactor::Reactors();
  const absl::Status status = InitRuntime(RuntimeOptions());
  CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(status.message()), ContainsSubstring("already runs"));
}

TEST_CASE("there is a reactor for each NUMA node, pinned to its CPUs", "[runtime]") {
  const absl::Span<const topology::Node> nodes = topology::Topology::Get().nodes();
  const absl::Span<reactor::Reactor* const> reactors = reactor::Reactors();
  REQUIRE(reactors.size() == nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    CHECK(reactors[i]->options().numa_node == nodes[i].index);
    struct Look : reactor::Work {
      Look()
          : Work([](reactor::Work* work) {
              auto* self = static_cast<Look*>(work);
              sched_getaffinity(0, sizeof(self->cpus), &self->cpus);
              self->done.Notify();
            }) {}
      cpu_set_t cpus;
      absl::Notification done;
    } look;
    reactors[i]->Post(look);
    look.done.WaitForNotification();
    CHECK(CPU_COUNT(&look.cpus) > 0);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &look.cpus)) continue;
      CHECK(std::count(nodes[i].cpus.begin(), nodes[i].cpus.end(), cpu) == 1);
    }
  }
}

}  // namespace
}  // namespace verbena
