#include "rpc/fabric/verbs/make.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "rpc/base/log.h"
#include "rpc/fabric/verbs/self_test.h"
#include "rpc/fabric/verbs/verbs_fabric.h"

namespace verbena::fabric::verbs {
namespace {

absl::string_view Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? absl::string_view() : value;
}

uint8_t SmallNumber(const char* name, uint32_t most) {
  const absl::string_view text = Environment(name);
  uint32_t value = 0;
  if (text.empty()) return 0;
  if (absl::SimpleAtoi(text, &value) && value <= most) return static_cast<uint8_t>(value);
  VERBENA_LOG(kWarning, name, "=", text, " is not 0 to ", most, ": ignored");
  return 0;
}

uint64_t Bytes(const char* name, uint64_t otherwise) {
  const absl::string_view text = Environment(name);
  uint64_t value = 0;
  if (text.empty()) return otherwise;
  if (absl::SimpleAtoi(text, &value)) return value;
  VERBENA_LOG(kWarning, name, "=", text, " is no number of bytes: ignored");
  return otherwise;
}

bool IsOff(const char* name) { return Environment(name) == "0"; }

absl::StatusOr<std::optional<Revocation>> WantedRevocation() {
  const absl::string_view text = Environment("VERBENA_VERBS_REVOCATION");
  if (text.empty()) return std::optional<Revocation>();
  if (text == "window") return std::optional(Revocation::kWindow);
  if (text == "lease-mr") return std::optional(Revocation::kLeaseMr);
  if (text == "lane") return std::optional(Revocation::kLane);
  return absl::InvalidArgumentError(
      absl::StrCat("VERBENA_VERBS_REVOCATION=", text, ", which is none of window, lease-mr, lane"));
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
  VerbsOptions options;
  absl::StatusOr<std::optional<Revocation>> revocation = WantedRevocation();
  if (!revocation.ok()) return revocation.status();
  absl::StatusOr<PortAddress> port = ChoosePort(make.numa_node, PortFilter::FromEnvironment());
  if (!port.ok()) return port.status();
  const SelfTest& tested = TestedOnce(*port);
  for (const absl::Status* status : {&tested.send, &tested.read}) {
    if (status->ok()) continue;
    return absl::UnavailableError(
        absl::StrCat(port->device->name(), " does not reach itself: ", status->message()));
  }
  options.revocation = *revocation;
  if (!options.revocation) {
    options.revocation = tested.window.ok() ? Revocation::kWindow : Revocation::kLeaseMr;
  }
  options.bounds_enforced = tested.bounds_enforced;
  options.port = *std::move(port);
  options.post_setup = make.post_setup;
  options.node = make.numa_node;
  options.srq = !IsOff("VERBENA_VERBS_SRQ");
  options.batch = !IsOff("VERBENA_VERBS_BATCH");
  options.gpu_direct = !IsOff("VERBENA_VERBS_GPUDIRECT");
  options.traffic_class = SmallNumber("VERBENA_VERBS_TRAFFIC_CLASS", 255);
  options.service_level = SmallNumber("VERBENA_VERBS_SERVICE_LEVEL", 15);
  options.copied_bytes_max = Bytes("VERBENA_VERBS_COPIED_BYTES_MAX", kCopiedBytesMax);
  absl::StatusOr<std::unique_ptr<VerbsFabric>> fabric = VerbsFabric::Create(options);
  if (!fabric.ok()) return fabric.status();
  return std::unique_ptr<Fabric>(*std::move(fabric));
}

}  // namespace verbena::fabric::verbs
