#pragma once
// internal::MessageReader: one received message, serialised, and what came beside it.
#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "rpc/session/session.h"
#include "verbena/buffer.h"

namespace verbena::internal {

class MessageReader {
 public:
  absl::Span<const std::byte> body;
  session::PayloadSetRef payloads;  // null: none
  // Where payloads were fetched to before the message was handed out, in the order of
  // payloads->entries(); empty: not.
  std::vector<Buffer> placed;
};

}  // namespace verbena::internal
