#pragma once
// verbs::DeviceEvents: the thread that takes the asynchronous events of one device, tells its
// listeners, and acknowledges every one of them, known or not: destroying a QP waits for that.
#include <infiniband/verbs.h>

#include <optional>

#include "rpc/fabric/verbs/device.h"

namespace verbena::fabric::verbs {

// What listeners are told; nothing for events that mean nothing here (a first message on a QP that
// is not up yet, a new subnet manager, path migration, which is not used).
struct TranslatedEvent {
  DeviceEvent event{};
  uint8_t port = 0;
  uint32_t qp_number = 0;
  const void* context = nullptr;  // of the QP, CQ or SRQ; null for the device and its ports
};
std::optional<TranslatedEvent> Translate(const ibv_async_event& event);

class DeviceEvents {
 public:
  // Starts the thread, which ends when the device is gone: it then says kDeviceFatal, if the device
  // did not.
  static void Start(Device* device);
  // Calls the listeners. Event thread; tests.
  static void Deliver(Device& device, const TranslatedEvent& event);

 private:
  static void Run(Device* device);
};

}  // namespace verbena::fabric::verbs
