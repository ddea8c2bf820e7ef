#pragma once
// verbs::Device: an RDMA device that this process has open, and ChoosePort, which finds the one to
// use. Devices are opened at the first call of All(), and stay open until the process ends, so a
// Device* is always valid; whether the device still works is another question (dead()).
//
//   absl::StatusOr<PortAddress> port = ChoosePort(node, Settings::FromEnvironment().filter);
//   if (!port.ok()) return port.status();  // what was found, and why it will not do
//   port->device->AddListener(this);
#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "rpc/fabric/verbs/device_limits.h"
#include "rpc/fabric/verbs/port_filter.h"
#include "rpc/fabric/verbs/why_none.h"

namespace verbena::fabric::verbs {

enum class DeviceEvent : uint8_t {
  kPortDown,
  kPortUp,
  kGidChange,        // addresses of a port changed: what was chosen may be gone
  kLidOrPkeyChange,  // likewise on InfiniBand
  kDeviceFatal,      // the device is gone or must be: every QP of it is dead
  kQpFatal,          // this QP is in ERR, or must be
  kQpLastWqe,        // a QP in ERR takes no more receives from its SRQ
  kCqError,          // overrun: every QP of the CQ is lost
  kSrqError,
  kSrqLimit,  // the SRQ ran below its limit
};
absl::string_view Name(DeviceEvent event);

class DeviceListener {
 public:
  // `port`: 0 = all of them, or none in particular. `qp_number`: 0 unless a QP is meant. On the
  // device's event thread: must not block, nor wait for anyone who may be destroying a QP, CQ or
  // SRQ. Destroying one returns after its last event was delivered.
  virtual void OnDeviceEvent(DeviceEvent event, uint8_t port, uint32_t qp_number) = 0;

 protected:
  ~DeviceListener() = default;
};

class Device {
 public:
  // Every device that could be opened, by name. The first call opens them and starts a thread for
  // each (some ms: call it on the setup thread first). Empty: WhyNone() says why. Empty also in a
  // child of fork(). Any thread.
  static absl::Span<Device* const> All();
  // For people: why All() is empty, with what to do about it; else, what could not be opened, or
  // nothing. Any thread.
  static std::string WhyNone();
  // What WhyNone() was made of. Any thread.
  static const SeenDevices& Seen();

  // Never closed. Any thread.
  ibv_context* context() const { return context_; }
  absl::string_view name() const { return name_; }
  int numa_node() const { return numa_node_; }  // -1: unknown
  const DeviceLimits& limits() const { return limits_; }
  // After a fatal event: nothing of it will work again in this process. Any thread.
  bool dead() const { return dead_.load(std::memory_order_acquire); }

  // Any thread but the event thread. Events of the device from now on. One of a QP, CQ or SRQ whose
  // context is a listener of this device (the DeviceListener* itself, as void*) goes to that
  // listener alone, any other to all.
  void AddListener(DeviceListener* listener);
  // Any thread but the event thread. Returns when no call of it is under way, nor will be.
  void RemoveListener(DeviceListener* listener);

 private:
  friend class DeviceList;
  friend struct DeviceForTest;
  friend class DeviceEvents;
  Device() = default;
  ~Device() = default;

  ibv_context* context_ = nullptr;
  std::string name_;
  int numa_node_ = -1;
  DeviceLimits limits_;
  std::atomic<bool> dead_{false};
  absl::Mutex mutex_;  // held while listeners are called
  std::vector<DeviceListener*> listeners_ ABSL_GUARDED_BY(mutex_);
};

// What one end of a QP is reached by. The choice at one moment: a GID can change (kGidChange).
struct PortAddress {
  Device* device = nullptr;
  uint8_t port = 0;
  bool ethernet = false;             // RoCE; else InfiniBand
  ibv_mtu mtu_active = IBV_MTU_256;  // the path's is the lesser of both ends'
  uint16_t lid = 0;                  // InfiniBand; 0 on RoCE
  // Packets must have a GRH: always on RoCE, on InfiniBand where the port demands it.
  bool grh = false;
  int gid_index = 0;
  uint8_t roce_version = 0;  // 1 or 2; 0 on InfiniBand. Both ends must have the same.
  ibv_gid gid{};
  std::string gid_text;  // "::ffff:10.0.2.15"
  uint16_t pkey = 0;
  uint16_t pkey_index = 0;
  uint32_t speed_mbps = 0;  // as the link says of itself
  std::string why;          // for logs: what was chosen over what, and by which rule
};

// The best port for a reactor of this NUMA node (-1: any): link up, nearest by NUMA distance, then
// the fastest, then by name; its GID by rule. May block some ms: setup thread.
//  - NOT_FOUND: no device at all, or none that the filter names.
//  - UNAVAILABLE: there are some, and none can be used now. Says of each why not.
absl::StatusOr<PortAddress> ChoosePort(int numa_node, const PortFilter& filter);

}  // namespace verbena::fabric::verbs
