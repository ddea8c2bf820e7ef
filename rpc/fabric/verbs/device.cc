#include "rpc/fabric/verbs/device.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "rpc/base/fork.h"
#include "rpc/base/log.h"
#include "rpc/fabric/verbs/device_events.h"
#include "rpc/fabric/verbs/device_probe.h"
#include "rpc/fabric/verbs/sysfs.h"
#include "rpc/fabric/verbs/why_none.h"

namespace verbena::fabric::verbs {
namespace {

// Children of fork() must leave registered memory as it is in the parent. New kernels see to that;
// old ones need it said before anything is registered, at the price of split mappings. A failure is
// no reason to stop: only programs that fork without exec are at risk.
void PrepareForFork() {
  if (ibv_is_fork_initialized() != IBV_FORK_DISABLED) return;
  if (const int error = ibv_fork_init(); error != 0) {
    VERBENA_LOG(kWarning, "ibv_fork_init: ", std::strerror(error),
                ": a child of fork() can take pages from registered memory of this process; exec "
                "at once, or do not fork");
  }
}

std::string WhyNotOfOurs(const ibv_device* device) {
  if (device->transport_type == IBV_TRANSPORT_IWARP) {
    return "iWARP, which is not supported: only RoCE and InfiniBand are";
  }
  if (device->transport_type != IBV_TRANSPORT_IB) return "neither RoCE nor InfiniBand";
  return {};
}

}  // namespace

// All devices that were opened, and what kept the others. Never destroyed.
class DeviceList {
 public:
  static DeviceList& Get() {
    static DeviceList* list = new DeviceList;
    return *list;
  }

  absl::Span<Device* const> devices() const { return devices_; }
  const SeenDevices& seen() const { return seen_; }

 private:
  DeviceList() {
    seen_.kernel = KernelDevices();
    for (std::string& name : NamesIn(absl::StrCat(kSysfs, "/class/infiniband_verbs"))) {
      if (name.rfind("uverbs", 0) == 0) seen_.user_verbs.push_back(std::move(name));
    }
    int count = 0;
    ibv_device** all = ibv_get_device_list(&count);
    if (all == nullptr) {
      // ENOSYS: the kernel has no RDMA at all, which the folder says too.
      if (errno != ENOSYS) seen_.list_error = errno;
      return;
    }
    const absl::Cleanup free_list = [all] { ibv_free_device_list(all); };
    if (count > 0) PrepareForFork();
    for (int i = 0; i < count; ++i) Add(all[i]);
    for (const std::string& name : seen_.kernel) LookAtUnlisted(name);
    std::sort(devices_.begin(), devices_.end(),
              [](const Device* a, const Device* b) { return a->name() < b->name(); });
    for (Device* device : devices_) DeviceEvents::Start(device);
  }

  void Add(ibv_device* found) {
    const std::string name = ibv_get_device_name(found);
    seen_.listed.push_back(name);
    SeenDevices::Unusable trouble{name, absl::StrCat("/dev/infiniband/", found->dev_name), 0,
                                  WhyNotOfOurs(found)};
    if (trouble.reason.empty()) {
      ibv_context* context = ibv_open_device(found);
      if (context == nullptr) {
        trouble.error = errno != 0 ? errno : EIO;
        // libibverbs waits for the file to come, and then says that it did not.
        if (::access(trouble.node.c_str(), R_OK | W_OK) != 0) trouble.error = errno;
      } else {
        trouble.reason = Keep(name, context);
      }
    }
    if (trouble.error != 0 || !trouble.reason.empty()) {
      seen_.unusable.push_back(std::move(trouble));
    }
  }

  // libibverbs leaves a device without its file out, as one without a driver.
  void LookAtUnlisted(const std::string& name) {
    if (std::find(seen_.listed.begin(), seen_.listed.end(), name) != seen_.listed.end()) return;
    const std::string file = UserVerbsOf(name);
    const std::string node = absl::StrCat("/dev/infiniband/", file);
    if (file.empty() || ::access(node.c_str(), R_OK | W_OK) == 0) return;
    seen_.unusable.push_back({name, node, errno, ""});
  }

  // Returns why it cannot be kept.
  std::string Keep(const std::string& name, ibv_context* context) {
    absl::StatusOr<DeviceLimits> limits = ProbeLimits(context);
    if (!limits.ok()) {
      ibv_close_device(context);
      return std::string(limits.status().message());
    }
    auto* device = new Device;
    device->context_ = context;
    device->name_ = name;
    device->numa_node_ = NumaNodeOf(name);
    device->limits_ = *limits;
    devices_.push_back(device);
    // What a child keeps lives on after this process: its mappings of queues keep the device open
    // as well, until it execs or ends, as base/fork.h asks of it.
    CloseInForkChild(context->cmd_fd);
    CloseInForkChild(context->async_fd);
    return {};
  }

  std::vector<Device*> devices_;
  SeenDevices seen_;
};

absl::string_view Name(DeviceEvent event) {
  switch (event) {
    case DeviceEvent::kPortDown:
      return "port down";
    case DeviceEvent::kPortUp:
      return "port up";
    case DeviceEvent::kGidChange:
      return "GID change";
    case DeviceEvent::kLidOrPkeyChange:
      return "LID or pkey change";
    case DeviceEvent::kDeviceFatal:
      return "device fatal";
    case DeviceEvent::kQpFatal:
      return "QP fatal";
    case DeviceEvent::kQpLastWqe:
      return "last receive of a QP";
    case DeviceEvent::kCqError:
      return "CQ overrun";
    case DeviceEvent::kSrqError:
      return "SRQ error";
    case DeviceEvent::kSrqLimit:
      return "SRQ below its limit";
  }
  return "unknown";
}

absl::Span<Device* const> Device::All() {
  if (Forked()) return {};
  return DeviceList::Get().devices();
}

std::string Device::WhyNone() { return WhyMissing(Seen()); }

const SeenDevices& Device::Seen() {
  static const SeenDevices* const of_child = [] {
    auto* seen = new SeenDevices;
    seen->forked = true;
    return seen;
  }();
  return Forked() ? *of_child : DeviceList::Get().seen();
}

void Device::AddListener(DeviceListener* listener) {
  absl::MutexLock lock(&mutex_);
  listeners_.push_back(listener);
}

void Device::RemoveListener(DeviceListener* listener) {
  absl::MutexLock lock(&mutex_);
  listeners_.erase(std::remove(listeners_.begin(), listeners_.end(), listener), listeners_.end());
}

}  // namespace verbena::fabric::verbs
