// The control lanes: frames out in chains, frames in from the pool.
#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/base/clock.h"
#include "rpc/base/slowdown.h"
#include "rpc/fabric/verbs/verbs_fabric.h"

namespace verbena::fabric::verbs {
namespace {

constexpr uint32_t kFrameBytesMin = 8;
// How long the peer's NIC may take to acknowledge a link's last frames before they are given up.
const int64_t kByeNs = int64_t{50'000'000} * kSlowdown;
// How long a peer may keep buffers that others want. Too short ends links to a machine that stands
// still for a moment; as long as this, the others' frames wait.
const int64_t kDeafNs = int64_t{1'000'000'000} * kSlowdown;
constexpr uint32_t kNoBuffer = ControlEnd::kNoBuffer;

}  // namespace

void VerbsFabric::Start(LinkId id) {
  auto link = std::make_unique<Link>();
  OwnedPair owned;
  {
    const std::lock_guard lock(setup_mutex_);
    const auto it = setups_.find(id);
    VERBENA_CHECK(it != setups_.end() && it->second.control.pair != nullptr,
                  "Start without Complete");
    owned = std::move(it->second.control);
    link->serial = it->second.serial;
  }
  link->id = id;
  const auto index = static_cast<size_t>(id);
  if (index >= links_.size()) links_.resize(index + 1);
  VERBENA_CHECK(links_[index] == nullptr, "link ", index, " is started already");
  by_qp_number_.reserve(sizes_.links_max);
  const uint32_t qp_number = owned.pair->number();
  auto end = std::make_unique<ControlEnd>(id, std::move(owned), sizes_.control_work);
  link->control = end.get();
  AddEnd(*link, std::move(end));
  by_qp_number_[qp_number] = link.get();
  links_[index] = std::move(link);
  if (!early_.empty()) started_.push_back(id);
}

bool VerbsFabric::AcquireFrame(LinkId id, OutFrame& frame) {
  Link* const link = Find(id);
  if (link == nullptr || link->closing) return false;
  ControlEnd& end = *link->control;
  const auto taken = static_cast<uint32_t>(end.chain.size()) + end.acquired;
  if (sends_->empty() || end.frame_room() <= taken) {
    ++link->counters.send_waits;
    WantBuffer(*link);
    return false;
  }
  ++end.acquired;
  frame.token = sends_->Take();
  frame.data = sends_->data(frame.token);
  frame.capacity = traits_.segment_bytes;
  frame.bytes = 0;
  return true;
}

void VerbsFabric::Discard(LinkId id, const OutFrame& frame) {
  sends_->Give(frame.token);
  sendable_ = true;
  Link* const link = Find(id);
  if (link != nullptr && link->control != nullptr) --link->control->acquired;
}

void VerbsFabric::Send(LinkId id, absl::Span<const OutFrame> frames) {
  Link* const link = Find(id);
  for (const OutFrame& frame : frames) {
    VERBENA_CHECK(frame.bytes >= kFrameBytesMin && frame.bytes <= frame.capacity, "frame of ",
                  frame.bytes);
    if (link == nullptr || link->closing) {
      Discard(id, frame);
      continue;
    }
    const auto length = static_cast<uint16_t>(frame.bytes);
    memcpy(frame.data, &length, sizeof length);
    --link->control->acquired;
    link->control->chain.push_back({frame.data, frame.token, frame.bytes});
  }
  if (link != nullptr && !link->closing) Chain(*link);
}

// Accepted also where the send queue has no room: the frame then waits in the chain, which the
// peer's credits bound.
void VerbsFabric::SendCopy(LinkId id, const std::byte* frame, uint32_t bytes) {
  VERBENA_DCHECK(bytes >= kFrameBytesMin && bytes <= traits_.copied_bytes, "frame of ", bytes);
  Link* const link = Find(id);
  if (link == nullptr || link->closing) return;
  ControlEnd& end = *link->control;
  // Its credits bound them, by a window, if it takes what it gave them for.
  if (end.chain.size() > size_t{8} * traits_.window_slots) {
    return BeginDown(
        *link,
        absl::DataLossError(absl::StrCat("verbs: the peer gives credits for frames ",
                                         "that it does not take: ", end.chain.size(), " wait")),
        false);
  }
  if (end.copied == end.copies.size()) {
    end.copies.push_back(std::make_unique<ControlEnd::Copy>());
  }
  std::byte* const to = end.copies[end.copied++]->bytes.data();
  for (uint32_t at = 0; at < bytes; at += 64) memcpy(to + at, frame + at, 64);
  const auto length = static_cast<uint16_t>(bytes);
  memcpy(to, &length, sizeof length);
  end.chain.push_back({to, ControlEnd::kNoBuffer, bytes});
  Chain(*link);
}

VerbsFabric::SendScratch::SendScratch() {
  for (size_t i = 0; i < works.size(); ++i) {
    works[i].next = i + 1 < works.size() ? &works[i + 1] : nullptr;
    works[i].sg_list = &pieces[i];
    works[i].num_sge = 1;
    works[i].opcode = IBV_WR_SEND;
  }
}

void VerbsFabric::Chain(Link& link) {
  if (link.chained) return;
  link.chained = true;
  chained_.push_back(&link);
}

void VerbsFabric::PostChains() {
  for (size_t i = 0; i < chained_.size(); ++i) {
    Link* const link = chained_[i];
    link->chained = false;
    // One on its way down takes nothing but its marker; its frames are given back at its end.
    if (link->control != nullptr && link->control->up()) PostChain(*link);
  }
  chained_.clear();
}

// All of it that there is room for, with one doorbell. Its last says when it is done, unless all of
// it was copied by the post: then only now and then one does, to get the queue's places back.
void VerbsFabric::PostChain(Link& link) {
  ControlEnd& end = *link.control;
  const size_t count = std::min<size_t>(end.chain.size(), end.frame_room());
  if (count == 0) return;
  auto& works = send_scratch_.works;
  uint64_t bytes = 0;
  uint32_t kept = 0;
  bool gives = false;
  uint32_t number = end.posted;
  for (size_t i = 0; i < count; ++i, ++number) {
    const ControlEnd::Queued& queued = end.chain[i];
    const bool inlined = queued.bytes <= end.inline_bytes;
    send_scratch_.pieces[i] = {reinterpret_cast<uint64_t>(queued.data), queued.bytes,
                               sends_->lkey()};
    works[i].wr_id = WorkId{WorkKind::kSend, end.number, number}.word();
    works[i].send_flags = inlined ? IBV_SEND_INLINE : 0;
    end.held[number % ControlEnd::kRing] = inlined ? ControlEnd::kNoBuffer : queued.buffer;
    kept += inlined ? 0 : 1;
    gives |= inlined && queued.buffer != ControlEnd::kNoBuffer;
    bytes += queued.bytes;
  }
  link.counters.send_bytes += bytes;
  link.counters.inline_sends += count - kept;
  end.unsignalled += static_cast<uint32_t>(count);
  if (kept > 0 || end.unsignalled >= end.work_max / 4) {
    works[count - 1].send_flags |= IBV_SEND_SIGNALED;
    end.unsignalled = 0;
  }
  ibv_send_wr* refused = nullptr;
  works[count - 1].next = nullptr;
  const int result = ibv_post_send(end.qp(), works.data(), &refused);
  if (count < works.size()) works[count - 1].next = &works[count];
  const size_t taken = result == 0          ? count
                       : refused == nullptr ? 0
                                            : static_cast<size_t>(refused - works.data());
  end.posted += static_cast<uint32_t>(taken);
  link.counters.sends += taken;
  ++link.counters.doorbells;
  read_pace_.OnFrame();
  if (std::exchange(link.sent_in_poll, polls_) != polls_) ++link.counters.send_ticks;
  if (gives || result != 0) GiveBackSent(end, count, taken);
  if (count == end.chain.size()) {
    end.chain.clear();
    end.copied = 0;
  } else {
    end.chain.erase(end.chain.begin(), end.chain.begin() + static_cast<std::ptrdiff_t>(count));
  }
  if (result != 0) return OnPostFailed(link, result);
  if (link.bye_waits && end.chain.empty()) PostBye(link);
}

// Of the chain's first `count`: what is inline was copied, what was refused is dropped.
void VerbsFabric::GiveBackSent(ControlEnd& end, size_t count, size_t taken) {
  for (size_t i = 0; i < count; ++i) {
    const ControlEnd::Queued& queued = end.chain[i];
    const bool free = i >= taken || queued.bytes <= end.inline_bytes;
    if (queued.buffer == ControlEnd::kNoBuffer || !free) continue;
    sends_->Give(queued.buffer);
    sendable_ = true;
  }
}

void VerbsFabric::OnPostFailed(Link& link, int result) {
  if (link.closing) return FailEnd(*link.control);
  BeginDown(link, absl::UnavailableError(absl::StrCat("verbs: ibv_post_send: ", strerror(result))),
            false);
}

// Behind the frames that wait for room.
void VerbsFabric::SayBye(Link& link) {
  link.bye_deadline_ns = SteadyNs() + kByeNs;
  byes_.push_back(link.id);
  link.bye_waits = !link.control->chain.empty();
  if (!link.bye_waits) PostBye(link);
}

void VerbsFabric::PostBye(Link& link) {
  ControlEnd& end = *link.control;
  ibv_send_wr work = {};
  work.wr_id = WorkId{WorkKind::kBye, end.number, end.posted}.word();
  work.opcode = IBV_WR_SEND_WITH_IMM;
  work.send_flags = IBV_SEND_SIGNALED;
  work.imm_data = htonl(kByeWord);
  ibv_send_wr* refused = nullptr;
  link.bye_waits = false;
  if (ibv_post_send(end.qp(), &work, &refused) != 0) return FailEnd(end);
  end.held[end.posted % ControlEnd::kRing] = ControlEnd::kNoBuffer;
  ++end.posted;
}

// Gives back what it and all before it held; good or bad, that comes first.
void VerbsFabric::OnSendDone(ControlEnd& end, const WorkId& id) {
  const uint32_t done = id.number + 1;
  if (done - end.completed > end.outstanding()) {
    ++counters_.stale_completions;
    return;
  }
  while (end.completed != done) {
    const uint32_t buffer = end.held[end.completed % ControlEnd::kRing];
    if (buffer != ControlEnd::kNoBuffer) sends_->Give(buffer);
    ++end.completed;
  }
  sendable_ = true;
  if (!end.chain.empty()) Chain(*Find(end.link));
}

void VerbsFabric::OnReceived(const ibv_wc& completion, EventSink& sink) {
  Received received;
  received.buffer = WorkId::FromWord(completion.wr_id).number;
  const uint32_t buffer = received.buffer;
  if (completion.status == IBV_WC_SUCCESS) {
    received.bytes = completion.byte_len;
    received.immediate = (completion.wc_flags & IBV_WC_WITH_IMM) != 0;
    received.word = received.immediate ? ntohl(completion.imm_data) : 0;
  }
  Link* const receiver = LinkOf(completion.qp_num);
  if (receiver == nullptr) {
    const bool good = completion.status == IBV_WC_SUCCESS;
    if (good && Holds(completion.qp_num)) return KeepEarly(completion.qp_num, received);
    GiveBack(buffer, completion.qp_num);
    ++counters_.stale_completions;
    return;
  }
  Link& link = *receiver;
  if (completion.status != IBV_WC_SUCCESS) {
    GiveBack(buffer, completion.qp_num);
    if (completion.status != IBV_WC_WR_FLUSH_ERR && !link.closing) {
      BeginDown(link,
                absl::UnavailableError(absl::StrCat("verbs: a receive failed: ",
                                                    ibv_wc_status_str(completion.status))),
                false);
    }
    return;
  }
  ++link.counters.receives;
  read_pace_.OnFrame();
  if (!link.closing) DeliverFrame(link, received, sink);
  GiveBack(buffer, completion.qp_num);
}

// Mostly the one that the last frame came from.
VerbsFabric::Link* VerbsFabric::LinkOf(uint32_t qp_number) {
  if (receiver_ != nullptr && received_from_ == qp_number) return receiver_;
  const auto found = by_qp_number_.find(qp_number);
  if (found == by_qp_number_.end()) return nullptr;
  received_from_ = qp_number;
  return receiver_ = found->second;
}

// Without an SRQ, the receives of a queue pair that fails are returned when it is gone.
void VerbsFabric::GiveBackTo(uint32_t buffer, uint32_t qp_number) {
  const auto found = by_qp_number_.find(qp_number);
  if (found == by_qp_number_.end()) return;
  const ControlEnd& end = *found->second->control;
  if (end.up()) receives_->GiveTo(buffer, end.qp());
}

void VerbsFabric::DeliverFrame(Link& link, const Received& received, EventSink& sink) {
  const uint32_t bytes = received.bytes;
  if (received.immediate && received.word == kByeWord && bytes == 0) {
    return BeginDown(link, absl::UnavailableError("verbs: the peer closed the link"), false);
  }
  if (received.immediate) {
    return BeginDown(link,
                     absl::DataLossError(absl::StrCat("verbs: ", bytes, " bytes with immediate ",
                                                      received.word, ", which no frame has")),
                     false);
  }
  const std::byte* const frame = receives_->data(received.buffer);
  uint16_t length = 0;
  if (bytes >= kFrameBytesMin) memcpy(&length, frame, sizeof length);
  if (bytes < kFrameBytesMin || length != static_cast<uint16_t>(bytes)) {
    return BeginDown(
        link,
        absl::DataLossError(absl::StrCat("verbs: a frame of ", bytes, " bytes that says ", length,
                                         "; the least is ", kFrameBytesMin)),
        false);
  }
  sink.OnFrame(link.id, absl::MakeSpan(frame, bytes));
}

// Whether frames of that queue pair are for a link that is being set up.
bool VerbsFabric::Holds(uint32_t qp_number) {
  const std::lock_guard lock(setup_mutex_);
  return std::any_of(setups_.begin(), setups_.end(), [&](const auto& setup) {
    return setup.second.control.pair != nullptr && setup.second.control_number == qp_number;
  });
}

// As much as the window holds: more would keep receives from everybody, and the link ends when it
// starts.
void VerbsFabric::KeepEarly(uint32_t qp_number, const Received& received) {
  const auto mine = [&](const EarlyFrame& early) { return early.qp_number == qp_number; };
  if (std::count_if(early_.begin(), early_.end(), mine) < traits_.window_slots) {
    early_.push_back({qp_number, received});
    return;
  }
  std::find_if(early_.rbegin(), early_.rend(), mine)->last = true;
  GiveBack(received.buffer, qp_number);
}

// Before anything newer of the same links.
void VerbsFabric::DeliverEarly(EventSink& sink) {
  for (const LinkId id : std::exchange(started_, {})) {
    Link* const link = Find(id);
    if (link == nullptr || link->control == nullptr) continue;
    const uint32_t qp_number = link->control->owned.pair->number();
    std::vector<EarlyFrame> mine;
    std::erase_if(early_, [&](const EarlyFrame& early) {
      if (early.qp_number != qp_number) return false;
      mine.push_back(early);
      return true;
    });
    for (const EarlyFrame& early : mine) {
      if (!link->closing) DeliverFrame(*link, early.received, sink);
      GiveBack(early.received.buffer, qp_number);
      if (early.last && !link->closing) {
        BeginDown(
            *link,
            absl::DataLossError(absl::StrCat("verbs: more frames than the window of ",
                                             traits_.window_slots, " before the link started")),
            false);
      }
    }
  }
}

void VerbsFabric::WantBuffer(Link& link) {
  if (link.wants_sendable) return;
  link.wants_sendable = true;
  want_buffer_.push_back(link.id);
}

void VerbsFabric::OfferBuffers() {
  if (!std::exchange(sendable_, false)) return;
  std::erase_if(want_buffer_, [this](LinkId id) {
    Link* const link = Find(id);
    if (link == nullptr || link->closing) return true;
    const ControlEnd& end = *link->control;
    const auto taken = static_cast<uint32_t>(end.chain.size()) + end.acquired;
    if (sends_->empty() || end.frame_room() <= taken) return false;
    link->wants_sendable = false;
    events_.Sendable(id);
    return true;
  });
}

// A device asks a peer that posts no receives again for ever, and keeps the frames meanwhile. Where
// others want buffers and none is left, such a peer's link ends: all that it held when it was first
// looked at must be taken within kDeafNs.
void VerbsFabric::EndDeaf() {
  const int64_t now_ns = SteadyNs();
  if (now_ns < next_look_ns_) return;
  next_look_ns_ = now_ns + kDeafNs / 16;
  for (const std::unique_ptr<Link>& link : links_) {
    if (link == nullptr || link->closing) continue;
    ControlEnd& end = *link->control;
    uint32_t newest = end.posted;
    // What is inline holds none, and may be done without having said so.
    while (newest != end.completed && end.held[(newest - 1) % ControlEnd::kRing] == kNoBuffer) {
      --newest;
    }
    if (newest == end.completed) continue;
    const uint32_t left = end.watched - end.completed;
    if (left == 0 || left > end.outstanding()) {  // taken, however long ago
      end.watched = newest;
      end.watched_ns = now_ns;
    } else if (now_ns - end.watched_ns > kDeafNs) {
      BeginDown(*link,
                absl::UnavailableError(absl::StrCat(
                    "verbs: the peer has not taken ", newest - end.completed, " frames for ",
                    kDeafNs / 1'000'000, " ms, and others need their buffers")),
                false);
    }
  }
}

}  // namespace verbena::fabric::verbs
