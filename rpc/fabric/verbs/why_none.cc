#include "rpc/fabric/verbs/why_none.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rpc/base/fork.h"

namespace verbena::fabric::verbs {
namespace {

Missing Unopened(const SeenDevices::Unusable& device) {
  if (device.error == 0) return {absl::StrCat(device.name, ": ", device.reason), ""};
  Missing missing{
      absl::StrCat(device.name, ": cannot open ", device.node, ": ", std::strerror(device.error)),
      ""};
  const std::string in_container = absl::StrCat("in a container: --device=", device.node);
  if (device.error == EACCES || device.error == EPERM) {
    missing.cure =
        absl::StrCat("chmod 0666 ", device.node, " (for good: a udev rule); ", in_container);
  } else if (device.error == ENOENT || device.error == ENXIO) {
    missing.cure = absl::StrCat("udevadm trigger; ", in_container);
  }
  return missing;
}

// Of the kernel's devices those that libibverbs does not list, for a reason that is not known.
std::vector<std::string> Unlisted(const SeenDevices& seen) {
  std::vector<std::string> names;
  for (const std::string& name : seen.kernel) {
    const bool listed =
        std::find(seen.listed.begin(), seen.listed.end(), name) != seen.listed.end();
    const bool explained =
        std::any_of(seen.unusable.begin(), seen.unusable.end(),
                    [&name](const SeenDevices::Unusable& device) { return device.name == name; });
    if (!listed && !explained) names.push_back(name);
  }
  return names;
}

}  // namespace

std::vector<Missing> MissingDevices(const SeenDevices& seen) {
  if (seen.forked) return {{std::string(ForkedError().message()), ""}};
  if (seen.kernel.empty() && seen.listed.empty()) {
    return {{"the kernel has no RDMA device (nothing in /sys/class/infiniband)",
             "with a NIC, load its driver: modprobe mlx5_ib (lspci says which NIC); without: "
             "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev DEV"}};
  }
  if (seen.user_verbs.empty() && seen.listed.empty()) {
    return {{absl::StrCat("the kernel has ", absl::StrJoin(seen.kernel, ", "),
                          ", but not for programs"),
             "modprobe ib_uverbs"}};
  }
  std::vector<Missing> missing;
  const std::vector<std::string> unlisted = Unlisted(seen);
  if (seen.list_error != 0) {
    missing.push_back(
        {absl::StrCat("libibverbs cannot list devices: ", std::strerror(seen.list_error)), ""});
  } else if (!unlisted.empty()) {
    missing.push_back(
        {absl::StrCat("libibverbs has no driver for ", absl::StrJoin(unlisted, ", ")),
         "apt-get install ibverbs-providers, or what the NIC's vendor calls its provider"});
  }
  for (const SeenDevices::Unusable& device : seen.unusable) missing.push_back(Unopened(device));
  return missing;
}

std::string WhyMissing(const SeenDevices& seen) {
  std::string text;
  for (const Missing& missing : MissingDevices(seen)) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", missing.what,
                    missing.cure.empty() ? "" : ". Mend it: ", missing.cure);
  }
  return text;
}

}  // namespace verbena::fabric::verbs
