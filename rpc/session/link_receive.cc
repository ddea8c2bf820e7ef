// What a link does with the frames that come in.
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/base/limits.h"
#include "rpc/session/engine_impl.h"
#include "rpc/session/link_impl.h"
#include "rpc/session/payload_set.h"
#include "rpc/wire/control.h"

namespace verbena::session {

inline void LinkImpl::OnRecord(wire::RecordHeader header, absl::Span<const std::byte> record) {
  if (state_ == State::kUp) [[likely]] {
    if (header.type == wire::RecordType::kReply && side_ == fabric::Side::kClient) {
      engine_impl_.CountReceived();
      ++counted.messages_received;
      return client_.OnReply(header, record);
    }
    if (header.type == wire::RecordType::kRequest && side_ == fabric::Side::kServer) {
      engine_impl_.CountReceived();
      ++counted.messages_received;
      return server_.OnRequest(header, record);
    }
  }
  OnControl(header, record);
}

void LinkImpl::OnFrame(absl::Span<const std::byte> frame) {
  if (!up()) return;
  if (wire::CheckFrame(frame) != wire::FrameError::kOk) {
    Violate(absl::InvalidArgumentError(wire::FrameErrorText(frame)));
    return;
  }
  ++counted.frames_received;
  if (!writer_.credits().OnReceived(static_cast<uint32_t>(frame.size()))) {
    Violate(absl::ResourceExhaustedError(
        absl::StrCat("the peer sent more than its credits: ", writer_.credits().OverrunText())));
    return;
  }
  if (!writer_.OnPeerGranted(wire::FrameGranted(frame))) {
    Violate(absl::InvalidArgumentError(
        absl::StrCat("the peer granted credits outside of its window: ",
                     writer_.credits().BadGrantText(wire::FrameGranted(frame)))));
    return;
  }
  for (wire::FrameCursor cursor(frame); !cursor.done();) {
    const wire::RecordHeader header = cursor.header();
    OnRecord(header, {cursor.data(), header.bytes});
    if (!up()) [[unlikely]]
      return;
    cursor.Next(header);
  }
  if (std::exchange(keys_came_, false)) [[unlikely]]
    transfers_.Pump();
  writer_.credits().OnConsumed();
  if (writer_.credits().GrantDue()) writer_.MarkDirty();
  if (writer_.stalled() || client_.waiting()) Resume();
}

void LinkImpl::OnControl(wire::RecordHeader header, absl::Span<const std::byte> record) {
  if (absl::Status status = TakeControl(header, record); !status.ok()) Violate(status);
}

absl::Status LinkImpl::TakeControl(wire::RecordHeader header, absl::Span<const std::byte> record) {
  switch (header.type) {
    case wire::RecordType::kReady:
    case wire::RecordType::kPattern:
    case wire::RecordType::kProved:
      return OnProofRecord(header, record);
    case wire::RecordType::kLaneOffer:
    case wire::RecordType::kLaneReady:
    case wire::RecordType::kLaneDown: {
      const absl::StatusOr<wire::LaneRecord> lane = wire::ReadLane(record);
      return lane.ok() ? lanes_.OnRecord(header.type, *lane) : lane.status();
    }
    case wire::RecordType::kLeaseKeys:
      return OnLeaseKeys(record);
    case wire::RecordType::kRelease:
      OnRelease(wire::Load<uint64_t>(record.data() + wire::kRecordHeaderBytes), header.word != 0);
      return absl::OkStatus();
    case wire::RecordType::kRecall:
      OnRecall(wire::Load<uint64_t>(record.data() + wire::kRecordHeaderBytes));
      return absl::OkStatus();
    case wire::RecordType::kGoAway:
      OnGoAway();
      return absl::OkStatus();
    case wire::RecordType::kGoAwayAck:
      drain_acknowledged_ = true;
      return absl::OkStatus();
    case wire::RecordType::kMethod:
      if (side_ == fabric::Side::kServer) return OnMethod(header.word, record);
      break;
    case wire::RecordType::kCancel:
      if (side_ == fabric::Side::kServer) {
        server_.OnCancel(header.word);
        return absl::OkStatus();
      }
      break;
    case wire::RecordType::kRequest:
    case wire::RecordType::kReply:
      break;
    default:
      return absl::OkStatus();  // CheckFrame let it pass: not critical
  }
  return absl::InvalidArgumentError(absl::StrCat("a record of type 0x",
                                                 absl::Hex(static_cast<uint8_t>(header.type)),
                                                 " out of its order or side"));
}

absl::Status LinkImpl::OnProofRecord(wire::RecordHeader header,
                                     absl::Span<const std::byte> record) {
  if (state_ != State::kProving)
    return absl::InvalidArgumentError("a proof on a link that was proved");
  if (header.type == wire::RecordType::kReady) {
    return side_ == fabric::Side::kServer ? proof_->OnReady()
                                          : absl::InvalidArgumentError("READY from a server");
  }
  if (header.type == wire::RecordType::kProved) return proof_->OnProved();
  absl::StatusOr<wire::Pattern> pattern = wire::ReadPattern(record);
  return pattern.ok() ? proof_->OnPattern(*std::move(pattern)) : pattern.status();
}

absl::Status LinkImpl::OnMethod(uint32_t number, absl::Span<const std::byte> record) {
  if (number != methods_.size() + 1 || number > limits::kMethodsPerLinkMax) {
    return absl::InvalidArgumentError(absl::StrCat("METHOD ", number, " after ", methods_.size(),
                                                   "; the limit is ", limits::kMethodsPerLinkMax));
  }
  const absl::StatusOr<absl::string_view> path = wire::ReadMethodPath(record);
  if (!path.ok()) return path.status();
  if (path->size() > limits::kMethodPathBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("METHOD ", number, " with a path of ",
                                                   path->size(), " bytes; the limit is ",
                                                   limits::kMethodPathBytesMax));
  }
  Method method;
  method.path = std::string(*path);
  method.cookie = sink_->Resolve(method.path);
  if (method.cookie != nullptr) method.request_bytes_max = sink_->RequestBytesMax(method.cookie);
  if (method.request_bytes_max == 0) method.request_bytes_max = limits::kMessageBytesMax;
  methods_.push_back(std::move(method));
  return absl::OkStatus();
}

absl::Status LinkImpl::DecodeInline(wire::MessageKind kind, absl::Span<const std::byte> record,
                                    wire::MessageView& view) {
  const uint8_t flags = wire::Load<wire::RecordHeader>(record.data()).flags;
  absl::Span<const std::byte> content = record.subspan(
      kind == wire::MessageKind::kRequest ? wire::kRequestHeaderBytes : wire::kReplyHeaderBytes);
  content.remove_suffix(flags & wire::kPaddingMask);
  absl::Status status = wire::DecodeSections(kind, flags, content, view);
  if (status.ok()) return status;
  return absl::InternalError(absl::StrCat("the message does not parse: ", status.message()));
}

void LinkImpl::OnRelease(uint64_t lease, bool whole_message) {
  const LeaseSlot slot = LeaseSlot::FromWord(lease);
  const Lease* const found = engine_impl_.leases().Find(slot);
  if (found == nullptr || &found->group->link() != this) return;  // it ended on our side meanwhile
  LeaseGroup& group = *found->group;
  if (!group.announced()) return;  // a guess: the peer was not told of it
  if (whole_message) {
    group.End();
  } else {
    group.EndOne(slot);
  }
}

LeaseNames::Place LinkImpl::FindName(uint64_t lease) {
  if (!names.on()) {
    names.TurnOn([this] {
      sets.ForEach([](PayloadSetImpl& set) { set.AddNames(); });
      for (Arrival* arrival : arrivals) arrival->AddNames();
    });
  }
  return names.Find(lease);
}

void LinkImpl::OnRecall(uint64_t lease) {
  const LeaseNames::Place place = FindName(lease);
  if (place.entry == nullptr) return;
  const absl::Status why = absl::DataLossError("the owner took the payload back");
  if (place.set != nullptr) {
    place.set->Stop(why, true);
  } else {
    place.arrival->Stop(why);
  }
}

absl::Status LinkImpl::OnLeaseKeys(absl::Span<const std::byte> record) {
  const absl::StatusOr<wire::LeaseKeys> keys = wire::ReadLeaseKeys(record);
  if (!keys.ok()) return keys.status();
  if (keys->lane != 0) return absl::OkStatus();  // no other is used here
  const absl::Span<const wire::LeaseKey> all = keys->keys;
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    while (end < all.size() && all[end].lease == all[begin].lease) ++end;
    const absl::Span<const wire::LeaseKey> of_one = all.subspan(begin, end - begin);
    const LeaseNames::Place place = FindName(all[begin].lease);
    if (place.entry == nullptr) {
      names.Keep(of_one, keys->generation);
    } else {
      TakeKeys(*place.entry, of_one, keys->generation);
      keys_came_ = true;
    }
  }
  return absl::OkStatus();
}

}  // namespace verbena::session
