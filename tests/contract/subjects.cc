#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "rpc/fabric/shm/shm_fabric.h"
#include "rpc/fabric/sim/network.h"
#include "rpc/fabric/tcp/tcp_fabric.h"
#include "tests/contract/fabric_contract.h"
#include "tests/contract/lane_listener.h"
#include "tests/contract/plain_device.h"
#include "tests/contract/setup_thread.h"
#include "tests/contract/verbs_subjects.h"
#include "tests/transports.h"

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
  for (Subject& subject : VerbsSubjects()) subjects.push_back(std::move(subject));
  // Where transports are named, those alone: a guest with RDMA devices need not repeat the rest.
  if (std::getenv("VERBENA_TEST_TRANSPORTS") == nullptr) return subjects;
  std::erase_if(subjects, [](const Subject& subject) {
    return std::none_of(
        TestTransports().begin(), TestTransports().end(),
        [&](const std::string& wanted) { return subject.name.rfind(wanted, 0) == 0; });
  });
  return subjects;
}

}  // namespace

const std::vector<Subject>& Subjects() {
  static const std::vector<Subject> subjects = MakeSubjects();
  return subjects;
}

}  // namespace verbena::contract
