#include "rpc/topology/topology.h"

#include <sched.h>

#include <algorithm>
#include <thread>

#include "tests/catch.h"

using verbena::topology::Node;
using verbena::topology::PinThread;
using verbena::topology::Topology;

TEST_CASE("a machine of two NUMA nodes shows its nodes, CPUs and distances", "[topology]") {
  const absl::StatusOr<Topology> machine = Topology::FromSynthetic("numa:2 core:2 pu:2");
  REQUIRE(machine.ok());
  REQUIRE(machine->nodes().size() == 2);
  CHECK(machine->nodes()[0].cpus == std::vector<int>{0, 1, 2, 3});
  CHECK(machine->nodes()[1].cpus == std::vector<int>{4, 5, 6, 7});
  CHECK(machine->NodeOfCpu(5) == 1);
  CHECK(machine->NodeOfCpu(8) == -1);
  CHECK(machine->Distance(0, 0) == 10);
  CHECK(machine->Distance(0, 1) > machine->Distance(0, 0));
  CHECK(machine->FindNode(2) == nullptr);
}

TEST_CASE("a description that means nothing is refused by name", "[topology]") {
  const absl::StatusOr<Topology> machine = Topology::FromSynthetic("nonsense");
  REQUIRE_FALSE(machine.ok());
  CHECK(machine.status().message().find("nonsense") != absl::string_view::npos);
}

TEST_CASE("only CPUs that this process may use are shown", "[topology]") {
  const Topology& machine = Topology::Get();
  REQUIRE_FALSE(machine.nodes().empty());
  cpu_set_t allowed;
  REQUIRE(sched_getaffinity(0, sizeof(allowed), &allowed) == 0);
  int seen = 0;
  for (const Node& node : machine.nodes()) {
    CHECK_FALSE(node.cpus.empty());
    for (int cpu : node.cpus) {
      CHECK(CPU_ISSET(cpu, &allowed));
      CHECK(machine.NodeOfCpu(cpu) == node.index);
      ++seen;
    }
  }
  CHECK(seen == CPU_COUNT(&allowed));
}

TEST_CASE("a pinned thread runs where it was pinned; bad sets are refused with the reason",
          "[topology]") {
  const int cpu = Topology::Get().nodes()[0].cpus.back();
  absl::Status pinned, empty, absent, negative;
  int ran_on = -1;
  std::thread([&] {
    pinned = PinThread({cpu});
    ran_on = verbena::topology::CurrentCpu();
    empty = PinThread({});
    absent = PinThread({8000});
    negative = PinThread({-1});
  }).join();
  CHECK(pinned.ok());
  CHECK(ran_on == cpu);
  CHECK(empty.code() == absl::StatusCode::kInvalidArgument);
  CHECK(negative.code() == absl::StatusCode::kInvalidArgument);
  CHECK(absent.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(absent.message().find("8000") != absl::string_view::npos);
}
