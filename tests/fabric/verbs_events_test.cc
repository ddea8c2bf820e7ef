// From the device's asynchronous events to listeners.
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "rpc/base/log.h"
#include "rpc/fabric/verbs/device_events.h"
#include "tests/catch.h"

namespace verbena::fabric::verbs {

struct DeviceForTest {
  DeviceForTest() : device(new Device) { device->name_ = "fake0"; }
  ~DeviceForTest() { delete device; }
  Device* device;
};

namespace {

struct Heard final : DeviceListener {
  void OnDeviceEvent(DeviceEvent event, uint8_t port, uint32_t qp_number) override {
    text += std::string(Name(event)) + " " + std::to_string(port) + " " +
            std::to_string(qp_number) + "\n";
  }
  std::string text;
};

// Quiet, and says what was logged.
struct Quiet {
  Quiet() {
    SetLogSink([](LogLevel, absl::string_view) {});
  }
  ~Quiet() { SetLogSink({}); }
};

std::string Translated(ibv_async_event event) {
  const std::optional<TranslatedEvent> told = Translate(event);
  if (!told.has_value()) return "";
  return std::string(Name(told->event)) + " " + std::to_string(told->port) + " " +
         std::to_string(told->qp_number);
}

ibv_async_event PortEvent(ibv_event_type type) {
  ibv_async_event event{};
  event.event_type = type;
  event.element.port_num = 2;
  return event;
}

TEST_CASE("events of ports and of the device are translated", "[verbs][events]") {
  CHECK(Translated(PortEvent(IBV_EVENT_PORT_ERR)) == "port down 2 0");
  CHECK(Translated(PortEvent(IBV_EVENT_PORT_ACTIVE)) == "port up 2 0");
  CHECK(Translated(PortEvent(IBV_EVENT_GID_CHANGE)) == "GID change 2 0");
  CHECK(Translated(PortEvent(IBV_EVENT_LID_CHANGE)) == "LID or pkey change 2 0");
  CHECK(Translated(PortEvent(IBV_EVENT_PKEY_CHANGE)) == "LID or pkey change 2 0");
  CHECK(Translated(PortEvent(IBV_EVENT_CLIENT_REREGISTER)) == "LID or pkey change 2 0");
  CHECK(Translated(PortEvent(IBV_EVENT_DEVICE_FATAL)) == "device fatal 0 0");
  CHECK(Translated(PortEvent(IBV_EVENT_SM_CHANGE)).empty());
}

TEST_CASE("events of queues say whose they are", "[verbs][events]") {
  int owner = 0;
  ibv_qp qp{};
  qp.qp_num = 17;
  qp.qp_context = &owner;
  ibv_async_event event{};
  event.element.qp = &qp;
  for (ibv_event_type type : {IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR}) {
    event.event_type = type;
    CHECK(Translated(event) == "QP fatal 0 17");
    CHECK(Translate(event)->context == &owner);
  }
  event.event_type = IBV_EVENT_QP_LAST_WQE_REACHED;
  CHECK(Translated(event) == "last receive of a QP 0 17");
  event.event_type = IBV_EVENT_COMM_EST;
  CHECK(Translated(event).empty());

  ibv_cq cq{};
  cq.cq_context = &owner;
  event.element.cq = &cq;
  event.event_type = IBV_EVENT_CQ_ERR;
  CHECK(Translated(event) == "CQ overrun 0 0");
  CHECK(Translate(event)->context == &owner);

  ibv_srq srq{};
  srq.srq_context = &owner;
  event.element.srq = &srq;
  event.event_type = IBV_EVENT_SRQ_ERR;
  CHECK(Translated(event) == "SRQ error 0 0");
  event.event_type = IBV_EVENT_SRQ_LIMIT_REACHED;
  CHECK(Translated(event) == "SRQ below its limit 0 0");
  CHECK(Translate(event)->context == &owner);
}

TEST_CASE("an event goes to its owner alone, else to all", "[verbs][events]") {
  Quiet quiet;
  DeviceForTest fake;
  Heard one, two;
  fake.device->AddListener(&one);
  fake.device->AddListener(&two);
  DeviceEvents::Deliver(*fake.device, {DeviceEvent::kPortDown, 1, 0, nullptr});
  CHECK(one.text == "port down 1 0\n");
  CHECK(two.text == one.text);
  DeviceEvents::Deliver(*fake.device,
                        {DeviceEvent::kCqError, 0, 0, static_cast<DeviceListener*>(&two)});
  CHECK(one.text == "port down 1 0\n");
  CHECK(two.text == "port down 1 0\nCQ overrun 0 0\n");
  // Somebody else's context.
  int stranger = 0;
  DeviceEvents::Deliver(*fake.device, {DeviceEvent::kQpFatal, 0, 5, &stranger});
  CHECK(one.text == "port down 1 0\nQP fatal 0 5\n");
  fake.device->RemoveListener(&one);
  DeviceEvents::Deliver(*fake.device, {DeviceEvent::kPortUp, 1, 0, nullptr});
  CHECK(one.text == "port down 1 0\nQP fatal 0 5\n");
}

TEST_CASE("after a fatal event the device is dead before listeners hear of it", "[verbs][events]") {
  Quiet quiet;
  DeviceForTest fake;
  struct Asks final : DeviceListener {
    void OnDeviceEvent(DeviceEvent, uint8_t, uint32_t) override { dead = device->dead(); }
    Device* device = nullptr;
    bool dead = false;
  } asks;
  asks.device = fake.device;
  fake.device->AddListener(&asks);
  CHECK_FALSE(fake.device->dead());
  DeviceEvents::Deliver(*fake.device, {DeviceEvent::kDeviceFatal, 0, 0, nullptr});
  CHECK(asks.dead);
}

TEST_CASE("removing a listener waits for a call that is under way", "[verbs][events]") {
  Quiet quiet;
  DeviceForTest fake;
  struct Slow final : DeviceListener {
    void OnDeviceEvent(DeviceEvent, uint8_t, uint32_t) override {
      entered = true;
      while (!removing) std::this_thread::yield();
      for (int i = 0; i < 1000; ++i) std::this_thread::yield();
      left = true;
    }
    std::atomic<bool> entered{false}, removing{false}, left{false};
  } slow;
  fake.device->AddListener(&slow);
  std::thread events([&] {
    DeviceEvents::Deliver(*fake.device, {DeviceEvent::kPortDown, 1, 0, nullptr});
  });
  while (!slow.entered) std::this_thread::yield();
  slow.removing = true;
  fake.device->RemoveListener(&slow);
  CHECK(slow.left);
  events.join();
}

}  // namespace
}  // namespace verbena::fabric::verbs
