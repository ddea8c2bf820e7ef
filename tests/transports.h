#pragma once
// The transports that tests go through one after the other: those that every machine has, or what
// VERBENA_TEST_TRANSPORTS names ("verbs", "shm,verbs"). tests/run --verbs has them all over verbs.
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"

namespace verbena {

inline const std::vector<std::string>& TestTransports() {
  static const auto* const transports = new std::vector<std::string>([] {
    const char* const named = std::getenv("VERBENA_TEST_TRANSPORTS");
    return std::vector<std::string>(
        absl::StrSplit(named == nullptr ? "shm,tcp" : named, ',', absl::SkipEmpty()));
  }());
  return *transports;
}

}  // namespace verbena
