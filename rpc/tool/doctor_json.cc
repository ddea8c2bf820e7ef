// What `verbena doctor --json` prints.
#include <nlohmann/json.hpp>
#include <optional>

#include "rpc/tool/doctor.h"

namespace verbena::tool {
namespace {

using fabric::verbs::DeviceLimits;
using fabric::verbs::DeviceReport;
using fabric::verbs::GidKind;
using fabric::verbs::GidRow;
using fabric::verbs::GidText;
using fabric::verbs::LockLimits;
using fabric::verbs::PortReport;
using Json = nlohmann::ordered_json;

// null where there is no limit.
Json Limit(uint64_t bytes) { return bytes == LockLimits::kUnlimited ? Json() : Json(bytes); }
// null where the device does not count it.
Json Counted(std::optional<uint64_t> count) { return count.has_value() ? Json(*count) : Json(); }
// null where the value is unknown.
Json Known(int number) { return number < 0 ? Json() : Json(number); }

Json OfLimits(const DeviceLimits& limits) {
  return {{"qp_max", limits.qp_max},
          {"qp_wr_max", limits.qp_wr_max},
          {"cq_entries_max", limits.cq_entries_max},
          {"srq_max", limits.srq_max},
          {"srq_wr_max", limits.srq_wr_max},
          {"sge_max", limits.sge_max},
          {"sge_rd_max", limits.sge_rd_max},
          {"read_depth_initiator", limits.read_depth_initiator},
          {"read_depth_responder", limits.read_depth_responder},
          {"mr_max", limits.mr_max},
          {"mr_bytes_max", limits.mr_bytes_max},
          {"mw_max", limits.mw_max},
          {"windows_2b", limits.windows_2b},
          {"dmabuf", limits.dmabuf_unknown ? Json() : Json(limits.dmabuf)},
          {"inline_bytes", limits.inline_bytes_hint},
          {"message_bytes_max", limits.message_bytes_max}};
}

absl::string_view KindName(GidKind kind) {
  switch (kind) {
    case GidKind::kInfiniBand:
      return "InfiniBand";
    case GidKind::kRoceV1:
      return "RoCE v1";
    case GidKind::kRoceV2:
      return "RoCE v2";
  }
  return "unknown";
}

Json OfGids(const PortReport& port) {
  Json all = Json::array();
  for (size_t i = 0; i < port.gids.size(); ++i) {
    const GidRow& row = port.gids[i];
    all.push_back({{"index", row.index},
                   {"gid", GidText(row.gid)},
                   {"kind", std::string(KindName(row.kind))},
                   {"netdev", row.netdev},
                   {"netdev_up", row.netdev_up},
                   {"chosen", static_cast<int>(i) == port.facts.gid.row}});
  }
  return all;
}

// null where it was not tried.
Json OfTrial(const fabric::verbs::PortTrial& trial) {
  if (!trial.ran) return {};
  return {{"send", trial.send},
          {"read", trial.read},
          {"error", trial.error},
          {"window", trial.window},
          {"window_error", trial.window_error},
          {"bounds_enforced", trial.bounds_enforced}};
}

Json OfPort(const PortReport& port) {
  return {{"port", port.facts.port},
          {"usable", port.unusable.empty()},
          {"unusable_because", port.unusable},
          {"state", port.facts.state},
          {"ethernet", port.facts.ethernet},
          {"netdev", port.netdev},
          {"mtu", port.mtu},
          {"speed_mbps", port.facts.speed_mbps},
          {"lid", port.facts.lid},
          {"gid_choice", port.facts.gid.why},
          {"gids", OfGids(port)},
          {"pkey_choice", port.facts.pkey.why},
          {"pkeys", port.pkeys},
          {"loopback", OfTrial(port.trial)},
          {"rnr", Counted(port.trouble.rnr)},
          {"retries", Counted(port.trouble.retries)},
          {"counters", port.counters}};
}

// Of a variable that is not set the value is null.
Json OfSettings(const MachineFacts& facts) {
  Json all = Json::array();
  for (const fabric::verbs::Setting& setting : facts.verbs.settings) {
    all.push_back({{"name", setting.name},
                   {"value", setting.value.empty() ? Json() : Json(setting.value)},
                   {"problem", setting.problem}});
  }
  return all;
}

Json OfVerbs(const MachineFacts& facts) {
  Json devices = Json::array();
  for (const DeviceReport& device : facts.verbs.devices) {
    Json ports = Json::array();
    for (const PortReport& port : device.ports) ports.push_back(OfPort(port));
    devices.push_back({{"name", device.name},
                       {"numa_node", Known(device.numa_node)},
                       {"soft", device.soft},
                       {"firmware", device.firmware},
                       {"iommu", device.iommu},
                       {"limits", OfLimits(device.limits)},
                       {"ports", ports}});
  }
  Json choices = Json::array();
  for (const fabric::verbs::NodeChoice& choice : facts.verbs.choices) {
    choices.push_back({{"node", choice.node},
                       {"device", choice.device},
                       {"port", choice.port},
                       {"distance", choice.distance},
                       {"why", choice.why}});
  }
  return {{"settings", OfSettings(facts)},
          {"filter",
           {{"device", facts.verbs.filter.device},
            {"gid_index", Known(facts.verbs.filter.gid_index)},
            {"pkey", Known(facts.verbs.filter.pkey)}}},
          {"devices", devices},
          {"choices", choices}};
}

Json OfNodes(const MachineFacts& facts) {
  Json all = Json::array();
  for (const NodeFacts& node : facts.nodes) {
    all.push_back({{"index", node.index},
                   {"cpus", node.cpus},
                   {"memory_bytes", node.memory_bytes},
                   {"distances", node.distances}});
  }
  return all;
}

Json OfGpus(const GpuFacts& gpus) {
  Json all = Json::array();
  for (const fabric::verbs::GpuReport& gpu : gpus.devices) {
    all.push_back({{"name", gpu.name},
                   {"pci", gpu.nic.pci},
                   {"dmabuf", gpu.nic.dma_buf},
                   {"writes_flushed", gpu.nic.flushes},
                   {"writes_seen", gpu.nic.writable},
                   {"bar1_bytes", gpu.nic.window_bytes == 0 ? Json() : Json(gpu.nic.window_bytes)},
                   {"registered_bytes_max", gpu.registered_bytes_max},
                   {"nearest_nic", gpu.nearest.empty() ? Json() : Json(gpu.nearest)},
                   {"nearest_nic_distance", Known(gpu.distance)},
                   {"loopback",
                    {{"nic", gpu.tried.empty() ? Json() : Json(gpu.tried)},
                     {"ran", gpu.trial.ran},
                     {"read", gpu.trial.ran ? Json(gpu.trial.works) : Json()},
                     {"text", gpu.trial.text}}}});
  }
  return all;
}

Json OfMemory(const MemoryFacts& memory) {
  Json reserved = Json::array();
  for (const MemoryFacts::Reserved& pages : memory.reserved) {
    reserved.push_back(
        {{"page_bytes", pages.page_bytes}, {"total", pages.total}, {"free", pages.free}});
  }
  return {{"pool_bytes_max", memory.pool_bytes_max},
          {"pools_huge", memory.pools_huge.has_value() ? Json(*memory.pools_huge) : Json()},
          {"transparent_huge_pages", memory.transparent},
          {"transparent_huge_pages_shared", memory.transparent_shared},
          {"reserved_huge_pages", reserved},
          {"memlock",
           {{"bytes_max", Limit(memory.lock.bytes_max)},
            {"bytes_max_hard", Limit(memory.lock.bytes_max_hard)},
            {"exempt", memory.lock.exempt}}}};
}

}  // namespace

std::string DoctorJson(const MachineFacts& facts, absl::Span<const Finding> findings) {
  Json transports = Json::array();
  for (const TransportFacts& transport : facts.transports) {
    transports.push_back(
        {{"name", transport.name}, {"usable", transport.usable}, {"text", transport.text}});
  }
  Json told = Json::array();
  for (const Finding& finding : findings) {
    told.push_back({{"problem", finding.problem},
                    {"area", finding.area},
                    {"text", finding.text},
                    {"cure", finding.cure}});
  }
  const Json all = {{"format", 1},
                    {"ok", !AnyProblem(findings)},
                    {"findings", told},
                    {"kernel", facts.kernel},
                    {"nodes", OfNodes(facts)},
                    {"verbs", OfVerbs(facts)},
                    {"transports", transports},
                    {"memory", OfMemory(facts.memory)},
                    {"gpu",
                     {{"nvidia_driver", facts.gpu.driver},
                      {"nvidia_driver_version", facts.gpu.driver_version},
                      {"nvidia_peermem", facts.gpu.peermem},
                      {"none", facts.gpu.none},
                      {"devices", OfGpus(facts.gpu)}}},
                    {"iommu",
                     {{"units", facts.iommu.units},
                      {"group_modes", facts.iommu.modes},
                      {"kernel_words", facts.iommu.words}}}};
  // Names come from the kernel: whatever is no UTF-8 there is replaced.
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace verbena::tool
