#include "rpc/fabric/verbs/make.h"

#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/base/log.h"
#include "rpc/fabric/verbs/self_test.h"
#include "rpc/fabric/verbs/settings.h"
#include "rpc/fabric/verbs/verbs_fabric.h"

namespace verbena::fabric::verbs {
namespace {

// Names that this version does not know, however many reactors are made.
void WarnOfUnknown(const Settings& settings) {
  static std::once_flag once;
  std::call_once(once, [&settings] {
    for (const Setting& setting : settings.all) {
      if (!setting.known) VERBENA_LOG(kWarning, "verbs: ", setting.problem);
    }
  });
}

// Once for each port of this process.
const SelfTest& TestedOnce(const PortAddress& port) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const tested = new std::map<std::pair<Device*, uint8_t>, SelfTest>;
  const std::lock_guard lock(*mutex);
  const auto [it, first] = tested->try_emplace({port.device, port.port});
  if (first) it->second = RunSelfTest(port);
  return it->second;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Fabric>> Make(const MakeOptions& make) {
  const Settings settings = Settings::FromEnvironment();
  WarnOfUnknown(settings);
  if (absl::Status sense = settings.Check(); !sense.ok()) return sense;
  absl::StatusOr<PortAddress> port = ChoosePort(make.numa_node, settings.filter);
  if (!port.ok()) return port.status();
  const SelfTest& tested = TestedOnce(*port);
  for (const absl::Status* status : {&tested.send, &tested.read}) {
    if (status->ok()) continue;
    return absl::UnavailableError(
        absl::StrCat(port->device->name(), " does not reach itself: ", status->message()));
  }
  VerbsOptions options;
  options.revocation = settings.revocation;
  if (!options.revocation) {
    options.revocation = tested.window.ok() ? Revocation::kWindow : Revocation::kLeaseMr;
  }
  options.bounds_enforced = tested.bounds_enforced;
  options.port = *std::move(port);
  options.post_setup = make.post_setup;
  options.node = make.numa_node;
  options.srq = settings.srq;
  options.batch = settings.batch;
  options.gpu_direct = settings.gpu_direct;
  options.traffic_class = settings.traffic_class;
  options.service_level = settings.service_level;
  options.copied_bytes_max = settings.copied_bytes_max.value_or(kCopiedBytesMax);
  absl::StatusOr<std::unique_ptr<VerbsFabric>> fabric = VerbsFabric::Create(options);
  if (!fabric.ok()) return fabric.status();
  return std::unique_ptr<Fabric>(*std::move(fabric));
}

}  // namespace verbena::fabric::verbs
