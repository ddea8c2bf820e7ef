// What a message's payloads are leased from: their own memory, or a copy of it that peers reach.
#include "rpc/tensor/message_writer.h"

#include <cstring>
#include <string>
#include <vector>

#include "tests/catch.h"

namespace verbena::internal {
namespace {

// The only payload that a writer gives to the session.
session::OutgoingPayload PayloadOf(MessageWriter& writer) {
  const session::Outgoing message = writer.outgoing();
  REQUIRE(message.payloads.size() == 1);
  return message.payloads[0];
}

}  // namespace

TEST_CASE("memory that peers reach by the kernel alone is staged up to the link's limit",
          "[message_writer]") {
  constexpr size_t kBytes = 20'000;
  std::vector<std::byte> memory(kBytes, std::byte{7});
  const Buffer own = Buffer::Wrap(memory.data(), kBytes, nullptr);
  for (const uint64_t staged_bytes_max : {uint64_t{0}, kBytes - 1, uint64_t{kBytes}, UINT64_MAX}) {
    MessageWriter writer;
    writer.Prepare(staged_bytes_max, 0);
    REQUIRE(writer.AddPayload(1, own, "field").ok());
    const session::OutgoingPayload payload = PayloadOf(writer);
    CHECK(payload.bytes == kBytes);
    const bool staged = kBytes <= staged_bytes_max;
    CHECK((payload.data != memory.data()) == staged);
    CHECK((payload.region->fd() >= 0) == staged);
    CHECK(std::memcmp(payload.data, memory.data(), kBytes) == 0);
  }
}

TEST_CASE("memory of the pools is never staged", "[message_writer]") {
  const Buffer pooled = Buffer::Allocate(20'000).value();
  MessageWriter writer;
  writer.Prepare(UINT64_MAX, 0);
  REQUIRE(writer.AddPayload(1, pooled, "field").ok());
  CHECK(PayloadOf(writer).data == pooled.data());
}

}  // namespace verbena::internal
