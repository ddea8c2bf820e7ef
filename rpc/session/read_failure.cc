#include "rpc/session/read_failure.h"

#include "absl/strings/str_cat.h"
#include "rpc/memory/device.h"
#include "rpc/session/payload_set.h"

namespace verbena::session {
namespace {

absl::Status DeviceFailed(const memory::Device& device, const absl::Status& why) {
  return absl::Status(
      why.code(), absl::StrCat(memory::NameOf(device.where()), ", which holds the destination, ",
                               "has failed: ", why.message()));
}

// A copy to a device that has not failed, and whose memory is there, did not fault for it.
absl::Status DestinationFault(const Transfer& transfer) {
  for (const fabric::LocalPiece& piece : transfer.fetch->pieces) {
    if (piece.device->host_accessible()) continue;
    if (absl::Status why = piece.device->health(); !why.ok()) {
      return DeviceFailed(*piece.device, why);
    }
  }
  for (const fabric::LocalPiece& piece : transfer.fetch->pieces) {
    if (piece.device->host_accessible() || piece.bytes == 0) continue;
    const auto there = piece.device->Describe(piece.data, piece.bytes);
    if (there.ok()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the destination on ", memory::NameOf(piece.device->where()),
                     " was freed during the fetch: ", there.status().message()));
  }
  return absl::OkStatus();
}

// Whether work can be queued on its stream: not while that is captured into a graph.
absl::Status StreamFault(const Transfer& transfer) {
  for (const fabric::LocalPiece& piece : transfer.fetch->pieces) {
    if (piece.device->host_accessible() || piece.order.stream == nullptr) continue;
    return piece.device->Record(piece.order).status();
  }
  return absl::OkStatus();
}

absl::Status Fault(const Transfer& transfer) {
  absl::Status here = DestinationFault(transfer);
  if (here.ok()) here = StreamFault(transfer);
  if (!here.ok()) return here;
  const ::verbena::Device where = WhereOf(*transfer.entry);
  if (where == ::verbena::Device::Host()) return StatusOf(Error::kFault);
  return absl::DataLossError(absl::StrCat("the payload's memory vanished, or ",
                                          memory::NameOf(where),
                                          " of its owner, which holds it, has failed"));
}

}  // namespace

absl::Status StatusOf(Error error) {
  switch (error) {
    case Error::kOk:
      return absl::OkStatus();
    case Error::kLeaseLost:
      return absl::DataLossError("the lease of the payload was lost");
    case Error::kOutOfBounds:
      return absl::OutOfRangeError("the peer's table names bytes outside of their lease");
    case Error::kLaneDown:
      return absl::UnavailableError("the bulk lane is down");
    case Error::kLinkDown:
      return absl::UnavailableError("the link to the owner is down");
    case Error::kUnsupported:
      return absl::UnimplementedError("this transport cannot reach the payload's memory");
    case Error::kNoMemory:
      return absl::ResourceExhaustedError("no memory for the READ");
    case Error::kFault:
      return absl::DataLossError("the payload's memory vanished");
  }
  return absl::InternalError("unknown READ error");
}

absl::Status ReadFailure(Error error, const Chunk& chunk, const Transfer& transfer) {
  const absl::Status why = error == Error::kFault ? Fault(transfer) : StatusOf(error);
  return absl::Status(why.code(), absl::StrCat(why.message(), ": a READ of ", chunk.bytes,
                                               " bytes at ", transfer.fetch->offset + chunk.offset,
                                               " of a payload of ", transfer.entry->bytes));
}

absl::Status StreamFailure(const Transfer& transfer, const absl::Status& why) {
  for (const fabric::LocalPiece& piece : transfer.fetch->pieces) {
    const absl::Status health = piece.device->health();
    if (!health.ok()) return DeviceFailed(*piece.device, health);
  }
  return why;
}

}  // namespace verbena::session
