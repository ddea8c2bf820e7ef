#include "rpc/fabric/verbs/memlock.h"

#include <linux/capability.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace verbena::fabric::verbs {
namespace {

std::string ReadAll(const char* path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

uint64_t LimitOf(rlim_t value) { return value == RLIM_INFINITY ? LockLimits::kUnlimited : value; }

std::string Size(uint64_t bytes) {
  if (bytes >= uint64_t{10} << 20) return absl::StrCat(bytes >> 20, " MiB");
  return absl::StrCat((bytes + 1023) >> 10, " KiB");
}

// "0 0 4294967295": users are numbered as the machine numbers them, so this is its own user
// namespace. That of a process that sees no such file is taken for the machine's too.
bool InMachinesUserNamespace(absl::string_view uid_map) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(uid_map, absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
  return words.empty() ||
         (words.size() == 3 && words[0] == "0" && words[1] == "0" && words[2] == "4294967295");
}

}  // namespace

void ReadLockFacts(absl::string_view status, absl::string_view uid_map, LockLimits& limits) {
  for (absl::string_view line : absl::StrSplit(status, '\n')) {
    uint64_t number = 0;
    if (absl::ConsumePrefix(&line, "CapEff:")) {
      limits.exempt = absl::SimpleHexAtoi(absl::StripAsciiWhitespace(line), &number) &&
                      (number >> CAP_IPC_LOCK & 1) != 0 && InMachinesUserNamespace(uid_map);
    } else if (absl::ConsumePrefix(&line, "VmPin:")) {
      line = absl::StripAsciiWhitespace(absl::StripSuffix(absl::StripAsciiWhitespace(line), "kB"));
      if (absl::SimpleAtoi(line, &number)) limits.pinned_bytes = number * 1024;
    }
  }
}

LockLimits CurrentLockLimits() {
  LockLimits limits;
  rlimit value{};
  if (getrlimit(RLIMIT_MEMLOCK, &value) == 0) {
    limits.bytes_max = LimitOf(value.rlim_cur);
    limits.bytes_max_hard = LimitOf(value.rlim_max);
  }
  ReadLockFacts(ReadAll("/proc/self/status"), ReadAll("/proc/self/uid_map"), limits);
  return limits;
}

std::string LockShortage(uint64_t bytes, const LockLimits& limits) {
  if (limits.exempt || limits.bytes_max == LockLimits::kUnlimited) return {};
  const uint64_t left = limits.bytes_max - std::min(limits.pinned_bytes, limits.bytes_max);
  if (bytes <= left) return {};
  return absl::StrCat("locked memory: ", Size(bytes), " more are needed, and ", Size(left),
                      " are left of RLIMIT_MEMLOCK, ", Size(limits.bytes_max));
}

std::string LockCure(uint64_t bytes, const LockLimits& limits) {
  if (limits.bytes_max_hard == LockLimits::kUnlimited) {
    return "ulimit -S -l unlimited in the shell that starts it";
  }
  if (limits.bytes_max_hard > limits.pinned_bytes &&
      limits.bytes_max_hard - limits.pinned_bytes >= bytes) {
    return absl::StrCat("ulimit -S -l ", limits.bytes_max_hard >> 10,
                        " in the shell that starts it");
  }
  return "ulimit -l unlimited as root in the shell that starts it; for logins \"* - memlock "
         "unlimited\" in /etc/security/limits.conf, in a systemd unit LimitMEMLOCK=infinity, with "
         "docker run --ulimit memlock=-1";
}

std::string LockProblem(uint64_t bytes, const LockLimits& limits) {
  const std::string shortage = LockShortage(bytes, limits);
  return shortage.empty() ? "" : absl::StrCat(shortage, ". Mend it: ", LockCure(bytes, limits));
}

}  // namespace verbena::fabric::verbs
