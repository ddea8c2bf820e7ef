#include "tests/contract/verbs_subjects.h"

#include <memory>
#include <string>
#include <utility>

#include "rpc/fabric/verbs/settings.h"
#include "tests/contract/setup_thread.h"

namespace verbena::contract {

Subject VerbsSubject(const VerbsWay& way) {
  Subject subject;
  subject.name = way.name;
  const absl::StatusOr<fabric::verbs::PortAddress> port =
      fabric::verbs::ChoosePort(-1, fabric::verbs::Settings::FromEnvironment().filter);
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
  options.bounds_enforced = way.bounds_enforced;
  options.srq = way.srq;
  options.links_max = 256;
  options.copied_bytes_max = way.copied_bytes_max;
  fabric::verbs::PortFilter filter = fabric::verbs::Settings::FromEnvironment().filter;
  if (*way.server_device != '\0') filter.device = way.server_device;
  const absl::StatusOr<fabric::verbs::PortAddress> far = fabric::verbs::ChoosePort(-1, filter);
  if (!far.ok()) {
    subject.skip = std::string(far.status().message());
    return subject;
  }
  subject.make = [options, far = *far](std::unique_ptr<fabric::Fabric>& client,
                                       std::unique_ptr<fabric::Fabric>& server,
                                       std::shared_ptr<void>& keep) {
    auto setup = std::make_shared<SetupThread>();
    fabric::verbs::VerbsOptions with = options;
    with.post_setup = [&thread = *setup](SetupThread::Job job) { thread.Post(std::move(job)); };
    for (std::unique_ptr<fabric::Fabric>* end : {&client, &server}) {
      if (end == &server) with.port = far;
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

std::vector<Subject> VerbsSubjects() {
  return {VerbsSubject({"verbs by window", fabric::Revocation::kWindow}),
          VerbsSubject({"verbs by registration", fabric::Revocation::kLeaseMr}),
          VerbsSubject({"verbs by lane", fabric::Revocation::kLane}),
          VerbsSubject({"verbs without SRQ", fabric::Revocation::kLeaseMr, false})};
}

}  // namespace verbena::contract
