#include "rpc/fabric/shm/shm_fabric.h"
#include "rpc/fabric/sim/network.h"
#include "rpc/fabric/tcp/tcp_fabric.h"
#include "rpc/fabric/verbs/verbs_fabric.h"
#include "tests/contract/fabric_contract.h"
#include "tests/contract/lane_listener.h"
#include "tests/contract/plain_device.h"
#include "tests/contract/setup_thread.h"

namespace verbena::contract {
namespace {

Subject Sim(const char* name, const fabric::sim::NetworkOptions& options) {
  Subject subject;
  subject.name = name;
  subject.one_thread = true;
  subject.make = [options](std::unique_ptr<fabric::Fabric>& client,
                           std::unique_ptr<fabric::Fabric>& server, std::shared_ptr<void>& keep) {
    auto network = std::make_shared<fabric::sim::Network>(options);
    client = network->MakeEndpoint();
    server = network->MakeEndpoint();
    keep = network;
  };
  return subject;
}

Subject Shm() {
  Subject subject;
  subject.name = "shm";
  subject.one_host = true;
  subject.two_processes = true;
  if (const absl::Status usable = fabric::shm::ShmUsable(); !usable.ok()) {
    subject.skip = usable.ToString();
  }
  subject.make = [](std::unique_ptr<fabric::Fabric>& client,
                    std::unique_ptr<fabric::Fabric>& server, std::shared_ptr<void>& keep) {
    auto setup = std::make_shared<SetupThread>();
    fabric::shm::ShmOptions options;
    options.host = &PlainDevice();
    options.post_setup = [&thread = *setup](SetupThread::Job job) { thread.Post(std::move(job)); };
    client = std::make_unique<fabric::shm::ShmFabric>(options);
    server = std::make_unique<fabric::shm::ShmFabric>(options);
    keep = setup;
  };
  return subject;
}

Subject Tcp() {
  Subject subject;
  subject.name = "tcp";
  subject.make = [](std::unique_ptr<fabric::Fabric>& client,
                    std::unique_ptr<fabric::Fabric>& server, std::shared_ptr<void>& keep) {
    auto listener = std::make_shared<LaneListener>();
    fabric::tcp::TcpOptions options;
    options.lane_port = listener->port();
    client = std::make_unique<fabric::tcp::TcpFabric>(options);
    server = std::make_unique<fabric::tcp::TcpFabric>(options);
    keep = listener;
  };
  return subject;
}

struct VerbsWay {
  const char* name;
  fabric::Revocation revocation;
  bool srq;
};

Subject Verbs(const VerbsWay& way) {
  Subject subject;
  subject.name = way.name;
  const absl::StatusOr<fabric::verbs::PortAddress> port =
      fabric::verbs::ChoosePort(-1, fabric::verbs::PortFilter::FromEnvironment());
  if (!port.ok()) {
    subject.skip = std::string(port.status().message());
    return subject;
  }
  if (way.revocation == fabric::Revocation::kWindow && !port->device->limits().windows_2b) {
    subject.skip = "the device has no memory windows";
  }
  fabric::verbs::VerbsOptions options;
  options.port = *port;
  options.revocation = way.revocation;
  options.srq = way.srq;
  options.links_max = 256;
  subject.make = [options](std::unique_ptr<fabric::Fabric>& client,
                           std::unique_ptr<fabric::Fabric>& server, std::shared_ptr<void>& keep) {
    auto setup = std::make_shared<SetupThread>();
    fabric::verbs::VerbsOptions with = options;
    with.post_setup = [&thread = *setup](SetupThread::Job job) { thread.Post(std::move(job)); };
    for (std::unique_ptr<fabric::Fabric>* end : {&client, &server}) {
      absl::StatusOr<std::unique_ptr<fabric::verbs::VerbsFabric>> made =
          fabric::verbs::VerbsFabric::Create(with);
      INFO(made.status().ToString());
      REQUIRE(made.ok());
      *end = *std::move(made);
    }
    setup->Settle();  // the domain knows the slabs to come
    keep = setup;
  };
  return subject;
}

std::vector<Subject> MakeSubjects() {
  std::vector<Subject> subjects;
  fabric::sim::NetworkOptions options;
  options.copied_bytes = 512;
  subjects.push_back(Sim("sim", options));
  options.prepares_lanes = false;
  options.seed = 2;
  subjects.push_back(Sim("sim without lanes", options));
  options.prepares_lanes = true;
  options.revocation = fabric::Revocation::kLane;
  options.seed = 3;
  subjects.push_back(Sim("sim by lane", options));
  subjects.push_back(Shm());
  subjects.push_back(Tcp());
  subjects.push_back(Verbs({"verbs by window", fabric::Revocation::kWindow, true}));
  subjects.push_back(Verbs({"verbs by registration", fabric::Revocation::kLeaseMr, true}));
  subjects.push_back(Verbs({"verbs by lane", fabric::Revocation::kLane, true}));
  subjects.push_back(Verbs({"verbs without SRQ", fabric::Revocation::kLeaseMr, false}));
  return subjects;
}

}  // namespace

const std::vector<Subject>& Subjects() {
  static const std::vector<Subject> subjects = MakeSubjects();
  return subjects;
}

}  // namespace verbena::contract
