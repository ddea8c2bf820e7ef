#include "rpc/fabric/verbs/device_events.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>

#include "rpc/base/log.h"

namespace verbena::fabric::verbs {
namespace {

TranslatedEvent OfPort(DeviceEvent event, const ibv_async_event& from) {
  return {event, static_cast<uint8_t>(from.element.port_num), 0, nullptr};
}
TranslatedEvent OfQp(DeviceEvent event, const ibv_async_event& from) {
  return {event, 0, from.element.qp->qp_num, from.element.qp->qp_context};
}
TranslatedEvent OfSrq(DeviceEvent event, const ibv_async_event& from) {
  return {event, 0, 0, from.element.srq->srq_context};
}

// What an operator should see without asking.
bool IsTrouble(DeviceEvent event) {
  return event != DeviceEvent::kPortUp && event != DeviceEvent::kQpLastWqe &&
         event != DeviceEvent::kSrqLimit && event != DeviceEvent::kGidChange;
}

}  // namespace

std::optional<TranslatedEvent> Translate(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_PORT_ERR:
      return OfPort(DeviceEvent::kPortDown, event);
    case IBV_EVENT_PORT_ACTIVE:
      return OfPort(DeviceEvent::kPortUp, event);
    case IBV_EVENT_GID_CHANGE:
      return OfPort(DeviceEvent::kGidChange, event);
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:  // after a subnet manager lost its state: LIDs may differ
      return OfPort(DeviceEvent::kLidOrPkeyChange, event);
    case IBV_EVENT_DEVICE_FATAL:
      return TranslatedEvent{DeviceEvent::kDeviceFatal, 0, 0, nullptr};
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      return OfQp(DeviceEvent::kQpFatal, event);
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return OfQp(DeviceEvent::kQpLastWqe, event);
    case IBV_EVENT_CQ_ERR:
      return TranslatedEvent{DeviceEvent::kCqError, 0, 0, event.element.cq->cq_context};
    case IBV_EVENT_SRQ_ERR:
      return OfSrq(DeviceEvent::kSrqError, event);
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return OfSrq(DeviceEvent::kSrqLimit, event);
    default:
      return std::nullopt;
  }
}

void DeviceEvents::Start(Device* device) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals belong to the application's threads
  try {
    std::thread thread(Run, device);
    pthread_setname_np(thread.native_handle(), "verbs-events");
    thread.detach();
  } catch (const std::system_error& error) {
    // Without it a lost device would be a silent hang.
    VERBENA_LOG(kError, device->name(), " is not used: no thread for its events: ", error.what());
    device->dead_.store(true, std::memory_order_release);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void DeviceEvents::Run(Device* device) {
  for (;;) {
    ibv_async_event event{};
    if (ibv_get_async_event(device->context(), &event) != 0) {
      if (errno == EINTR) continue;
      VERBENA_LOG(kError, device->name(), ": its events end: ", std::strerror(errno));
      if (!device->dead()) Deliver(*device, {DeviceEvent::kDeviceFatal, 0, 0, nullptr});
      return;
    }
    const std::optional<TranslatedEvent> told = Translate(event);
    if (told.has_value()) Deliver(*device, *told);
    // Last: who destroys a QP waits here until its listeners have heard of it.
    ibv_ack_async_event(&event);
  }
}

void DeviceEvents::Deliver(Device& device, const TranslatedEvent& event) {
  if (event.event == DeviceEvent::kDeviceFatal) {
    device.dead_.store(true, std::memory_order_release);
  }
  if (IsTrouble(event.event)) {
    VERBENA_LOG(kWarning, device.name(), ": ", Name(event.event), " (port ",
                static_cast<int>(event.port), ", qp ", event.qp_number, ")");
  } else {
    VERBENA_LOG(kInfo, device.name(), ": ", Name(event.event), " (port ",
                static_cast<int>(event.port), ", qp ", event.qp_number, ")");
  }
  absl::MutexLock lock(&device.mutex_);
  const auto owner = std::find_if(
      device.listeners_.begin(), device.listeners_.end(),
      [&event](const DeviceListener* l) { return static_cast<const void*>(l) == event.context; });
  for (DeviceListener* listener : device.listeners_) {
    if (owner != device.listeners_.end() && listener != *owner) continue;
    listener->OnDeviceEvent(event.event, event.port, event.qp_number);
  }
}

}  // namespace verbena::fabric::verbs
