#include "rpc/fabric/verbs/port_choice.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "rpc/topology/pci.h"

namespace verbena::fabric::verbs {
namespace {

constexpr int kUnknownDistance = 20;

std::string NameOf(const PortFacts& port) {
  return absl::StrCat(port.device, ":", static_cast<int>(port.port));
}

std::vector<absl::string_view> NamesIn(const PortFilter& filter) {
  std::vector<absl::string_view> names;
  for (const absl::string_view name : absl::StrSplit(filter.device, ',', absl::SkipWhitespace())) {
    names.push_back(absl::StripAsciiWhitespace(name));
  }
  return names;
}

bool IsNameOf(absl::string_view name, const PortFacts& port) {
  return name == port.device || name == NameOf(port);
}

// 0: no host bridge is between it and a GPU. Where no GPU is in use, all are the same.
int GpuClass(const PortFacts& port) {
  if (port.gpu_distance < 0 || port.gpu_distance >= topology::kPciProcessors) return 2;
  return port.gpu_distance < topology::kPciHostBridge ? 0 : 1;
}

struct Candidate {
  int distance;
  const PortFacts* port;
  size_t index;

  auto Order() const {
    return std::make_tuple(distance, GpuClass(*port), -static_cast<int64_t>(port->speed_mbps),
                           absl::string_view(port->device), port->port);
  }
};

std::string Nearness(const PortFacts& port, int numa_node, int distance) {
  if (port.numa_node < 0) return "NUMA node unknown";
  if (numa_node < 0) return absl::StrCat("NUMA node ", port.numa_node);
  return absl::StrCat("NUMA node ", port.numa_node, ", distance ", distance);
}

std::string Gigabits(uint32_t mbps) {
  return mbps == 0 ? "speed unknown" : absl::StrCat(mbps / 1000.0, " Gb/s");
}

// Why `passed` came after `best`.
std::string Against(const Candidate& passed, const Candidate& best) {
  if (passed.distance != best.distance) return "farther";
  if (GpuClass(*passed.port) != GpuClass(*best.port)) return "farther from the GPUs";
  if (passed.port->speed_mbps != best.port->speed_mbps) {
    return absl::StrCat("slower, ", Gigabits(passed.port->speed_mbps));
  }
  return "a later name";
}

}  // namespace

bool Names(const PortFilter& filter, const PortFacts& port) {
  const std::vector<absl::string_view> names = NamesIn(filter);
  return names.empty() || std::any_of(names.begin(), names.end(), [&port](absl::string_view name) {
           return IsNameOf(name, port);
         });
}

std::string WhyUnmatched(const PortFilter& filter, absl::Span<const PortFacts> ports) {
  std::vector<absl::string_view> unmatched;
  for (const absl::string_view name : NamesIn(filter)) {
    const bool matched = std::any_of(
        ports.begin(), ports.end(), [name](const PortFacts& port) { return IsNameOf(name, port); });
    if (!matched) unmatched.push_back(name);
  }
  if (unmatched.empty()) return {};
  const std::string there = absl::StrJoin(ports, ", ", [](std::string* out, const PortFacts& port) {
    absl::StrAppend(out, NameOf(port));
  });
  return absl::StrCat("VERBENA_VERBS_DEVICE=", filter.device, ": no RDMA port is named ",
                      absl::StrJoin(unmatched, ", "),
                      there.empty() ? "; there is none" : "; there are: ", there);
}

std::string WhyUnusable(const PortFacts& port) {
  if (port.dead) return "the device had a fatal error; restart the process";
  if (!port.active) {
    return absl::StrCat(
        "the link is not up (", port.state, "): ",
        port.ethernet ? "see ip link, cable and switch" : "see ibstat, cable and subnet manager");
  }
  if (!port.ethernet && port.lid == 0) return "it has no LID: no subnet manager runs";
  if (port.gid.row < 0) return port.gid.why;
  if (port.pkey.index < 0) return port.pkey.why;
  return {};
}

PortChoice PickPort(absl::Span<const PortFacts> ports, int numa_node, const PortFilter& filter,
                    absl::FunctionRef<int(int from, int to)> distance) {
  PortChoice choice;
  choice.unmatched = WhyUnmatched(filter, ports);
  std::vector<Candidate> order;
  std::string unusable;
  for (size_t i = 0; i < ports.size(); ++i) {
    const PortFacts& port = ports[i];
    if (!Names(filter, port)) continue;
    choice.named = true;
    const std::string why_not = WhyUnusable(port);
    if (!why_not.empty()) {
      absl::StrAppend(&unusable, unusable.empty() ? "" : "; ", NameOf(port), ": ", why_not);
      continue;
    }
    const int far = numa_node < 0        ? 0
                    : port.numa_node < 0 ? kUnknownDistance
                                         : distance(numa_node, port.numa_node);
    order.push_back({far, &port, i});
  }
  if (order.empty()) {
    choice.why = unusable;
    if (!choice.unmatched.empty()) {
      absl::StrAppend(&choice.why, unusable.empty() ? "" : "; ", choice.unmatched);
    }
    if (choice.why.empty()) choice.why = "no RDMA port";
    return choice;
  }
  std::sort(order.begin(), order.end(),
            [](const Candidate& a, const Candidate& b) { return a.Order() < b.Order(); });
  const Candidate& best = order.front();
  choice.index = static_cast<int>(best.index);
  const int to_gpu = best.port->gpu_distance;
  choice.why =
      absl::StrCat(NameOf(*best.port), " (", Nearness(*best.port, numa_node, best.distance), ", ",
                   to_gpu < 0 ? "" : absl::StrCat("a GPU ", topology::PciNearness(to_gpu), ", "),
                   Gigabits(best.port->speed_mbps), ")");
  for (size_t i = 1; i < order.size(); ++i) {
    absl::StrAppend(&choice.why, i == 1 ? " before " : ", ", NameOf(*order[i].port), " (",
                    Against(order[i], best), ")");
  }
  if (!unusable.empty()) absl::StrAppend(&choice.why, "; not usable: ", unusable);
  absl::StrAppend(&choice.why, "; ", best.port->gid.why, "; ", best.port->pkey.why);
  return choice;
}

}  // namespace verbena::fabric::verbs
