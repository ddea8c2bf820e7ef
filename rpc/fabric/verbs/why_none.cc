#include "rpc/fabric/verbs/why_none.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rpc/base/fork.h"

namespace verbena::fabric::verbs {
namespace {

std::string OpenProblem(const SeenDevices::Unusable& device) {
  if (device.error == 0) return absl::StrCat(device.name, ": ", device.reason);
  const std::string text =
      absl::StrCat(device.name, ": cannot open ", device.node, ": ", std::strerror(device.error));
  switch (device.error) {
    case EACCES:
    case EPERM:
      return absl::StrCat(text, ". Let this user have it: chmod 0666 ", device.node,
                          " or a udev rule; in a container --device=", device.node);
    case ENOENT:
    case ENXIO:
      return absl::StrCat(text, ". In a container: --device=", device.node,
                          "; else: udevadm trigger");
    default:
      return text;
  }
}

}  // namespace

std::string WhyMissing(const SeenDevices& seen) {
  if (seen.forked) return std::string(ForkedError().message());
  if (seen.kernel.empty() && seen.listed.empty()) {
    return "the kernel has no RDMA device (nothing in /sys/class/infiniband). With a NIC: load its "
           "driver (lspci; modprobe mlx5_ib). Without: modprobe rdma_rxe && rdma link add rxe0 "
           "type rxe netdev DEV";
  }
  if (seen.user_verbs.empty() && seen.listed.empty()) {
    return absl::StrCat("the kernel has ", absl::StrJoin(seen.kernel, ", "),
                        ", but not for programs: modprobe ib_uverbs");
  }
  std::vector<std::string> problems;
  if (seen.list_error != 0) {
    problems.push_back(
        absl::StrCat("libibverbs cannot list devices: ", std::strerror(seen.list_error)));
  }
  std::vector<std::string> unlisted;
  for (const std::string& name : seen.kernel) {
    if (std::find(seen.listed.begin(), seen.listed.end(), name) == seen.listed.end()) {
      unlisted.push_back(name);
    }
  }
  if (!unlisted.empty() && seen.list_error == 0) {
    problems.push_back(absl::StrCat("libibverbs has no driver for ", absl::StrJoin(unlisted, ", "),
                                    ": apt-get install ibverbs-providers, or what the NIC's "
                                    "vendor calls its provider"));
  }
  for (const SeenDevices::Unusable& device : seen.unusable) {
    problems.push_back(OpenProblem(device));
  }
  return absl::StrJoin(problems, "; ");
}

}  // namespace verbena::fabric::verbs
