#include "rpc/fabric/verbs/port_filter.h"

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "rpc/base/log.h"

namespace verbena::fabric::verbs {
namespace {

int NumberOf(const char* variable, int max) {
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == 0) return -1;
  absl::string_view text = value;
  int number = -1;
  const bool parsed = absl::ConsumePrefix(&text, "0x") || absl::ConsumePrefix(&text, "0X")
                          ? absl::SimpleHexAtoi(text, &number)
                          : absl::SimpleAtoi(text, &number);
  if (parsed && number >= 0 && number <= max) return number;
  VERBENA_LOG(kWarning, variable, " is ignored: \"", value, "\" is no number from 0 to ", max);
  return -1;
}

}  // namespace

PortFilter PortFilter::FromEnvironment() {
  PortFilter filter;
  if (const char* device = std::getenv("VERBENA_VERBS_DEVICE")) filter.device = device;
  filter.gid_index = NumberOf("VERBENA_VERBS_GID_INDEX", 255);
  filter.pkey = NumberOf("VERBENA_VERBS_PKEY", 0xffff);
  return filter;
}

}  // namespace verbena::fabric::verbs
