#pragma once
// Results of verbs calls as Status. libibverbs tells of failures in four ways; each has a wrapper
// here, named after what the call returns. A failure's text is "CALL: what errno means", and, where
// a limit of the process is the likely cause, what to set.
//
//   RETURN_IF_ERROR(ErrnoReturned("ibv_modify_qp", ibv_modify_qp(qp, &attributes, mask)));
//   absl::StatusOr<ibv_pd*> pd = Made("ibv_alloc_pd", ibv_alloc_pd(context));
//
// Codes: RESOURCE_EXHAUSTED (memory, locked memory, descriptors, the device's objects),
// PERMISSION_DENIED, UNIMPLEMENTED (the device or its driver has no such thing), INVALID_ARGUMENT,
// UNAVAILABLE (the device is gone), else INTERNAL. Not for the message path: a failure allocates.
#include <cerrno>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace verbena::fabric::verbs {

// `error`: an errno. Never OK. Any thread.
absl::Status CallFailed(absl::string_view call, int error);

// ibv_post_*, ibv_modify_*, ibv_query_device, ibv_query_port, ibv_destroy_*, ibv_dereg_mr,
// ibv_dealloc_*, ibv_req_notify_cq, ibv_resize_cq, ibv_bind_mw: 0, or an errno. A negative one is
// taken for -errno, or where it is -1, for errno: some providers do so.
inline absl::Status ErrnoReturned(absl::string_view call, int result) {
  if (result == 0) return absl::OkStatus();
  const int error = result > 0 ? result : result == -1 ? errno : -result;
  return CallFailed(call, error);
}

// ibv_query_gid, ibv_query_pkey, ibv_get_cq_event, ibv_get_async_event, ibv_close_device: 0, or -1
// and errno.
inline absl::Status ErrnoSet(absl::string_view call, int result) {
  return result == 0 ? absl::OkStatus() : CallFailed(call, errno);
}

// ibv_create_*, ibv_reg_*, ibv_alloc_*, ibv_open_device: a pointer, or null and errno. Does not own
// it.
template <class Object>
absl::StatusOr<Object*> Made(absl::string_view call, Object* object) {
  if (object == nullptr) return CallFailed(call, errno);
  return object;
}

// ibv_poll_cq: a count, or a negative number that says no more; ibv_query_gid_table: -errno. `call`
// as above.
inline absl::StatusOr<int> Counted(absl::string_view call, long result) {
  if (result < 0) return CallFailed(call, result == -1 ? EIO : static_cast<int>(-result));
  return static_cast<int>(result);
}

}  // namespace verbena::fabric::verbs
