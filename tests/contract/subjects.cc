#include "rpc/fabric/sim/network.h"
#include "tests/contract/fabric_contract.h"

namespace verbena::contract {
namespace {

Subject Sim(const char* name, const fabric::sim::NetworkOptions& options) {
  Subject subject;
  subject.name = name;
  subject.make = [options](std::unique_ptr<fabric::Fabric>& client,
                           std::unique_ptr<fabric::Fabric>& server, std::shared_ptr<void>& keep) {
    auto network = std::make_shared<fabric::sim::Network>(options);
    client = network->MakeEndpoint();
    server = network->MakeEndpoint();
    keep = network;
  };
  return subject;
}

std::vector<Subject> MakeSubjects() {
  std::vector<Subject> subjects;
  fabric::sim::NetworkOptions options;
  subjects.push_back(Sim("sim", options));
  options.prepares_lanes = false;
  options.seed = 2;
  subjects.push_back(Sim("sim without lanes", options));
  return subjects;
}

}  // namespace

const std::vector<Subject>& Subjects() {
  static const std::vector<Subject> subjects = MakeSubjects();
  return subjects;
}

}  // namespace verbena::contract
