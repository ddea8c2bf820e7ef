#include "rpc/fabric/verbs/sysfs.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace verbena::fabric::verbs {
namespace {

namespace fs = std::filesystem;

std::string DeviceFolder(absl::string_view device, absl::string_view root) {
  return absl::StrCat(root, "/class/infiniband/", device);
}

// Soft-RoCE's name; mlx5's; bnxt_re's.
constexpr std::array<absl::string_view, 6> kRetryNames = {
    "completer_retry_err", "local_ack_timeout_err", "packet_seq_err",
    "implied_nak_seq_err", "to_retransmits",        "seq_err_naks_rcvd"};

bool TellsOfRnr(absl::string_view name) {
  return absl::StrContains(name, "rnr") || name == "out_of_buffer";
}

// The node of a device's folder or of the next of its parents that has one: a virtio interface
// hangs below the PCI function that knows.
int NodeAbove(const fs::path& link, absl::string_view root) {
  std::error_code error;
  const fs::path top = fs::canonical(std::string(root), error);
  if (error) return -1;
  for (fs::path at = fs::canonical(link, error); !error && at != top && at.has_relative_path();
       at = at.parent_path()) {
    int node = -1;
    if (absl::SimpleAtoi(ReadLine(at / "numa_node"), &node) && node >= 0) return node;
  }
  return -1;
}

void AddCounters(const std::string& folder, std::map<std::string, uint64_t>& counters) {
  for (const std::string& name : NamesIn(folder)) {
    uint64_t value = 0;
    if (name == "lifespan") continue;  // how often they are read, in ms
    if (absl::SimpleAtoi(ReadLine(absl::StrCat(folder, "/", name)), &value)) {
      counters.emplace(name, value);
    }
  }
}

}  // namespace

std::string ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return std::string(absl::StripAsciiWhitespace(line));
}

std::vector<std::string> NamesIn(const std::string& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    names.insert(at->path().filename().string());
  }
  return {names.begin(), names.end()};
}

std::vector<std::string> KernelDevices(absl::string_view root) {
  return NamesIn(absl::StrCat(root, "/class/infiniband"));
}

std::string UserVerbsOf(absl::string_view device, absl::string_view root) {
  const std::string folder = absl::StrCat(root, "/class/infiniband_verbs");
  for (const std::string& name : NamesIn(folder)) {
    if (ReadLine(absl::StrCat(folder, "/", name, "/ibdev")) == std::string(device)) return name;
  }
  return {};
}

std::string NetdevOf(absl::string_view device, int port, absl::string_view root) {
  const std::string folder = DeviceFolder(device, root);
  const std::string first = ReadLine(absl::StrCat(folder, "/ports/", port, "/gid_attrs/ndevs/0"));
  return first.empty() ? ReadLine(folder + "/parent") : first;
}

int NumaNodeOf(absl::string_view device, absl::string_view root) {
  const int node = NodeAbove(DeviceFolder(device, root) + "/device", root);
  if (node >= 0) return node;
  const std::string netdev = NetdevOf(device, 1, root);
  return netdev.empty() ? -1
                        : NodeAbove(absl::StrCat(root, "/class/net/", netdev, "/device"), root);
}

std::map<std::string, uint64_t> HardwareCounters(absl::string_view device, int port,
                                                 absl::string_view root) {
  std::map<std::string, uint64_t> counters;
  const std::string folder = absl::StrCat(DeviceFolder(device, root), "/ports/", port);
  AddCounters(folder + "/hw_counters", counters);
  AddCounters(folder + "/counters", counters);
  return counters;
}

PortTrouble TroubleIn(const std::map<std::string, uint64_t>& counters) {
  PortTrouble trouble;
  for (const auto& [name, count] : counters) {
    if (TellsOfRnr(name)) trouble.rnr = trouble.rnr.value_or(0) + count;
    if (std::find(kRetryNames.begin(), kRetryNames.end(), name) != kRetryNames.end()) {
      trouble.retries = trouble.retries.value_or(0) + count;
    }
  }
  return trouble;
}

}  // namespace verbena::fabric::verbs
