#include "rpc/tensor/message_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/message_lite.h"
#include "rpc/base/limits.h"
#include "rpc/memory/helpers.h"
#include "rpc/memory/pool.h"
#include "rpc/tensor/buffer_memory.h"
#include "verbena/service.h"

namespace verbena::internal {

std::byte* MessageWriter::ReserveLarge(size_t bytes) {
  beyond_ = true;
  const uint64_t bytes_max = std::min(bytes_max_, limits::kMessageBytesHighest);
  if (bytes > bytes_max) {
    status_ = absl::ResourceExhaustedError(
        absl::StrCat("the message has ", bytes, " bytes; the limit is ", bytes_max,
                     ". Large data travels as a verbena.v1.Tensor or Buffer"));
    return nullptr;
  }
  bytes_ = bytes;
  if (memory::OnReactor()) {
    block_ = memory::TryAllocateBlock(bytes);
    if (block_) return block_.data();
    heap_.reset(new std::byte[bytes]);  // not zeroed
    return heap_.get();
  }
  absl::StatusOr<memory::Block> block = memory::AllocateBlock(bytes);
  if (!block.ok()) {
    status_ = std::move(block).status();
    bytes_ = 0;
    return nullptr;
  }
  block_ = *std::move(block);
  return block_.data();
}

absl::Status MessageWriter::AddPayload(uint64_t ticket, const Buffer& buffer, const char* field) {
  absl::StatusOr<memory::RegionRef> region = BufferAccess::region(buffer);
  if (!region.ok()) {
    return absl::Status(region.status().code(),
                        absl::StrCat(field, ": ", region.status().message()));
  }
  session::OutgoingPayload payload;
  payload.ticket = ticket;
  payload.region = *std::move(region);
  // What lies on a device may be read for longer than it is leased (rpc/fabric/shm/quarantine.h):
  // who has its region then has the buffer's memory too.
  if (!payload.region->device().host_accessible()) {
    payload.region = memory::RegionRef(BufferAccess::memory(buffer), payload.region.get());
  }
  payload.data = buffer.data();
  payload.bytes = buffer.bytes();
  payload.after = BufferAccess::after(buffer);
  Kept kept{buffer, {}};
  const bool kernel_only = payload.region->fd() < 0 && payload.region->device().host_accessible();
  if (kernel_only && buffer.bytes() <= staged_bytes_max_) {
    const bool now = memory::OnReactor();
    absl::StatusOr<memory::Block> staged =
        now ? memory::TryAllocateBlock(buffer.bytes()) : memory::AllocateBlock(buffer.bytes());
    if (staged.ok() && *staged) {  // else the slower way works too
      std::memcpy(staged->data(), buffer.data(), buffer.bytes());
      payload.region = staged->region();
      payload.data = staged->data();
      kept.staged = *std::move(staged);
    }
  }
  beyond_ = true;
  payloads_.push_back(std::move(payload));
  kept_.push_back(std::move(kept));
  return absl::OkStatus();
}

void MessageWriter::AddBeyond(session::Outgoing& out) const {
  if (block_) {
    out.body = {block_.data(), bytes_};
    out.body_region = block_.region();
  } else if (heap_ != nullptr) {
    out.body = {heap_.get(), bytes_};
    out.body_heap = &heap_;
  }
  out.payloads = payloads_;
}

void MessageWriter::ResetBeyond() {
  beyond_ = false;
  if (block_) block_.Reset();
  if (heap_ != nullptr) heap_.reset();
  if (!payloads_.empty()) payloads_.clear();
  if (!kept_.empty()) kept_.clear();
  if (!status_.ok()) status_ = absl::OkStatus();
}

absl::Status WriteMessage(const google::protobuf::MessageLite& message, MessageWriter& out) {
  const size_t bytes = message.ByteSizeLong();
  std::byte* to = out.Reserve(bytes);
  if (to == nullptr) return out.status();
  message.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(to));
  return absl::OkStatus();
}

}  // namespace verbena::internal
