#include "rpc/fabric/verbs/calls.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "rpc/fabric/verbs/memlock.h"

namespace verbena::fabric::verbs {
namespace {

absl::StatusCode CodeOf(int error) {
  switch (error) {
    case ENOMEM:
    case ENOSPC:
    case EAGAIN:
    case EMFILE:
    case ENFILE:
    case EBUSY:
      return absl::StatusCode::kResourceExhausted;
    case EPERM:
    case EACCES:
      return absl::StatusCode::kPermissionDenied;
    case ENOSYS:
    case EOPNOTSUPP:
    case EPROTONOSUPPORT:
      return absl::StatusCode::kUnimplemented;
    case EINVAL:
    case EFAULT:
    case E2BIG:
      return absl::StatusCode::kInvalidArgument;
    case EIO:
    case ENODEV:
    case ENXIO:
    case ENETDOWN:
    case ENETUNREACH:
    case EHOSTUNREACH:
    case ETIMEDOUT:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

// Queues are pinned as registrations are, so any call can meet the limit.
std::string CureOf(int error) {
  if (error == EMFILE) return "; raise the limit of open files (ulimit -n)";
  if (error != ENOMEM) return {};
  const LockLimits limits = CurrentLockLimits();
  if (limits.exempt || limits.bytes_max == LockLimits::kUnlimited) return {};
  return absl::StrCat("; ", limits.pinned_bytes >> 10, " KiB are pinned, and RLIMIT_MEMLOCK is ",
                      limits.bytes_max >> 10,
                      " KiB. If that is it: ", LockCure(limits.bytes_max + 1, limits));
}

}  // namespace

absl::Status CallFailed(absl::string_view call, int error) {
  return absl::Status(CodeOf(error), absl::StrCat(call, ": ", std::strerror(error), CureOf(error)));
}

}  // namespace verbena::fabric::verbs
