#pragma once
// internal::MessageWriter: where one message is serialised to, and the payloads that will travel
// beside it. Part of a call object, reused with it: small messages cost no allocation.
//
// Invariant: what outgoing() names stays valid until Reset(); the owner resets only when no peer
// can read it any more.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "rpc/base/limits.h"
#include "rpc/memory/region.h"
#include "rpc/session/session.h"
#include "verbena/buffer.h"

namespace verbena::internal {

class MessageWriter {
 public:
  // Messages up to this need no memory of the pools.
  static constexpr size_t kInlineBytes = 512;

  MessageWriter() = default;
  MessageWriter(const MessageWriter&) = delete;
  MessageWriter& operator=(const MessageWriter&) = delete;

  // `staged_bytes_max`: memory that peers can only reach through the kernel is copied to the pools
  // first up to this size, see session::LinkInfo. `bytes_max`: larger messages are refused; 0 =
  // limits::kMessageBytesMax.
  void Prepare(uint64_t staged_bytes_max, uint64_t bytes_max) {
    staged_bytes_max_ = staged_bytes_max;
    bytes_max_ = bytes_max != 0 ? bytes_max : limits::kMessageBytesMax;
  }

  // Room for the serialised message. Never waits for memory on a reactor. Null: status() says why
  // (RESOURCE_EXHAUSTED, naming the limit).
  std::byte* Reserve(size_t bytes) {
    if (bytes > kInlineBytes || bytes > bytes_max_) return ReserveLarge(bytes);
    bytes_ = bytes;
    return small_.data();
  }
  // Shares `buffer` until Reset(). `field` is for error texts.
  absl::Status AddPayload(uint64_t ticket, const Buffer& buffer, const char* field);
  const absl::Status& status() const { return status_; }

  session::Outgoing outgoing() const {
    session::Outgoing out;
    out.body = {small_.data(), bytes_};
    if (beyond_) AddBeyond(out);
    return out;
  }
  void Reset() {
    bytes_ = 0;
    if (beyond_) ResetBeyond();
  }

 private:
  std::byte* ReserveLarge(size_t bytes);
  void AddBeyond(session::Outgoing& out) const;
  void ResetBeyond();

  struct Kept {
    Buffer buffer;
    memory::Block staged;
  };
  std::array<std::byte, kInlineBytes> small_;
  size_t bytes_ = 0;
  bool beyond_ = false;  // there is more than bytes_ in small_
  memory::Block block_;
  std::shared_ptr<std::byte[]> heap_;  // where a reactor found no room; the session copies it
  absl::InlinedVector<session::OutgoingPayload, 2> payloads_;
  absl::InlinedVector<Kept, 2> kept_;
  uint64_t bytes_max_ = limits::kMessageBytesMax;
  uint64_t staged_bytes_max_ = 0;
  absl::Status status_;
};

}  // namespace verbena::internal
