#include "rpc/session/link_impl.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/base/clock.h"
#include "rpc/base/limits.h"
#include "rpc/base/log.h"
#include "rpc/session/engine_impl.h"
#include "rpc/wire/control.h"

namespace verbena::session {
namespace {

uint32_t SegmentOf(const LinkSetup& setup) {
  const uint32_t mine = setup.fabric->traits().segment_bytes;
  return setup.peer_segment_bytes == 0 ? mine : std::min(mine, setup.peer_segment_bytes);
}

uint32_t OpenMaxOf(const LinkSetup& setup) {
  return std::min<uint32_t>(
      setup.open_calls_max == 0 ? limits::kOpenCallsMax : setup.open_calls_max, 0xffff);
}

}  // namespace

LinkImpl::LinkImpl(EngineImpl& engine, uint64_t serial, const LinkSetup& setup, LinkOwner* owner,
                   RequestSink* sink, Proved proved)
    : engine_impl_(engine),
      fabric_(*setup.fabric),
      id_(setup.id),
      serial_(serial),
      side_(setup.side),
      owner_(owner),
      sink_(sink),
      proved_(std::move(proved)),
      writer_(*this, engine.dirty(), *setup.fabric, setup.id, SegmentOf(setup)),
      inline_max_(writer_.record_bytes_max() - wire::kRequestHeaderBytes),
      reply_lease_age_max_ns_(std::min(
          kNeverNs, absl::ToInt64Nanoseconds(setup.reply_lease_age_max > absl::ZeroDuration()
                                                 ? setup.reply_lease_age_max
                                                 : engine.options().reply_lease_age_max))),
      lanes_(*this),
      transfers_(*this),
      client_(*this, OpenMaxOf(setup)),
      server_(*this, OpenMaxOf(setup)),
      timer_(*this) {
  VERBENA_CHECK((owner == nullptr) != (sink == nullptr), "a link has an owner or a sink");
  engine_ = &engine;
  info_ = setup.info;
  if (setup.stream_fd >= 0 || setup.peer_pidfd >= 0) {
    death_watch_ = std::make_unique<DeathWatch>(engine.gate(), id_, serial_, setup.stream_fd,
                                                setup.peer_pidfd);
  }
}

LinkImpl::~LinkImpl() { engine_impl_.reactor().Cancel(timer_); }

void LinkImpl::Begin() {
  fabric_.Start(id_);
  proof_ = std::make_unique<Proof>(*this);
  proof_->Begin(absl::ToInt64Nanoseconds(engine_impl_.options().prove_timeout));
}

LinkTally LinkImpl::TallyNow() const {
  LinkTally tally = counted;
  tally.frames_sent = writer_.frames_sent();
  tally.fabric = fabric_.CountersOf(id_);
  return tally;
}

absl::Status LinkImpl::DownStatus() const {
  if (peer_drains_ || draining_) {
    if (cause_.ok())
      return absl::UnavailableError(absl::StrCat("the link to ", info_.peer, " drains"));
  }
  return absl::UnavailableError(
      absl::StrCat("the link to ", info_.peer, " is down: ", cause_.message()));
}

int64_t LinkImpl::AfterUs(uint64_t us) const {
  constexpr uint64_t kYearUs = uint64_t{365} * 24 * 3600 * 1000 * 1000;
  return engine_impl_.now_ns() + static_cast<int64_t>(std::min(us, kYearUs)) * 1000;
}

void LinkImpl::DueAt(int64_t due_ns) {
  if (due_ns >= due_ns_) return;
  due_ns_ = due_ns;
  engine_impl_.reactor().Arm(timer_, due_ns);
}

// ---- sending

void LinkImpl::SendControl(absl::Span<const std::byte> record) {
  if (!up()) return;
  if (control_.empty()) {
    std::byte* const to =
        writer_.Reserve(static_cast<uint32_t>(record.size()), SendClass::kControl);
    if (to != nullptr) {
      std::memcpy(to, record.data(), record.size());
      writer_.Staged();
      return;
    }
    writer_.HoldData(true);
  }
  control_.Push(record);
}

void LinkImpl::DrainControl() {
  while (!control_.empty()) {
    const absl::Span<const std::byte> record = control_.front();
    std::byte* const to =
        writer_.Reserve(static_cast<uint32_t>(record.size()), SendClass::kControl);
    if (to == nullptr) return;
    std::memcpy(to, record.data(), record.size());
    writer_.Staged();
    control_.Pop();
  }
  writer_.HoldData(false);
}

void LinkImpl::SendLeaseRecord(wire::RecordType type, uint64_t lease, bool whole_message) {
  std::byte record[wire::kLeaseRecordBytes];
  wire::WriteLease(type, lease, whole_message, record);
  SendControl(record);
}

void LinkImpl::SendCancel(uint32_t word) {
  std::byte record[wire::kRecordHeaderBytes];
  wire::WriteBare(wire::RecordType::kCancel, word, record);
  SendControl(record);
}

void LinkImpl::SendBare(wire::RecordType type) {
  std::byte record[wire::kRecordHeaderBytes];
  wire::WriteBare(type, 0, record);
  SendControl(record);
}

uint32_t LinkImpl::DefineMethod(uint32_t method) {
  if (method < method_numbers_.size() && method_numbers_[method] != 0)
    return method_numbers_[method];
  const absl::string_view path = MethodPath(method);
  const size_t bytes = wire::MethodRecordBytes(path);
  if (path.empty() || path.size() > limits::kMethodPathBytesMax || !PromiseMethod(method)) return 0;
  std::byte* const to = writer_.Reserve(static_cast<uint32_t>(bytes), SendClass::kData);
  if (to == nullptr) return 0;
  if (method >= method_numbers_.size()) method_numbers_.resize(method + 1);
  method_numbers_[method] = static_cast<uint16_t>(++methods_defined_);
  wire::WriteMethod(methods_defined_, path, to);
  writer_.Staged();
  return methods_defined_;
}

bool LinkImpl::PromiseMethod(uint32_t method) {
  if (method < methods_promised_.size() && methods_promised_[method]) return true;
  if (promised_ == limits::kMethodsPerLinkMax) return false;
  if (method >= methods_promised_.size()) methods_promised_.resize(method + 1);
  methods_promised_[method] = true;
  ++promised_;
  return true;
}

void LinkImpl::Resume() {
  writer_.ClearStalled();
  if (writer_.credits().GrantDue()) writer_.MarkDirty();  // what stalled may have been the grant
  DrainControl();
  if (!control_.empty()) return;
  server_.Resume();
  client_.Resume();
}

void LinkImpl::OnBudget() {
  if (!up()) return;
  server_.Resume();
  client_.Resume();
}

void LinkImpl::OnSendable() {
  if (up()) Resume();
}

// ---- life

void LinkImpl::OnProved() {
  if (state_ != State::kProving) return;
  state_ = State::kUp;
  proved_up_ = true;
  info_.staged_bytes_max = fabric_.StagedBytesMax(id_);
  if (owner_ != nullptr) owner_->OnLinkUp(*this);
  if (sink_ != nullptr) sink_->OnLinkUp(*this);
  Proved proved = std::move(proved_);
  proved_ = nullptr;
  if (proved) std::move(proved)(this);
}

void LinkImpl::OnTimer() {
  due_ns_ = INT64_MAX;
  const int64_t now_ns = engine_impl_.now_ns();
  if (proof_ != nullptr && state_ == State::kProving) proof_->Expire(now_ns);
  if (!up()) return;
  client_.Expire(now_ns);
  server_.Expire(now_ns);
  transfers_.Expire(now_ns);
  groups.ForEach([now_ns](LeaseGroup& group) { group.Expire(now_ns); });
  if (drain_due_ns_ != 0) DueAt(drain_due_ns_);
  CheckDrained();
}

void LinkImpl::StartDrain(int64_t deadline_ns) {
  if (!up()) return;
  if (state_ == State::kProving) {
    BeginClose(absl::UnavailableError("this end drains"));
    return;
  }
  if (!draining_) {
    draining_ = true;
    SendBare(wire::RecordType::kGoAway);
    client_.FailWaiting(DownStatus());
    engine_impl_.AddDraining(*this);
  }
  drain_due_ns_ = deadline_ns;
  DueAt(deadline_ns);
}

bool LinkImpl::CheckDrained() {
  if (!draining_ || !up()) return draining_;
  const bool late = engine_impl_.now_ns() - drain_due_ns_ >= 0;
  const bool empty =
      drain_acknowledged_ && client_.live() == 0 && server_.live() == 0 && transfers_.idle();
  if (!late && !empty) return false;
  BeginClose(absl::UnavailableError(late ? "drained, its time was up" : "drained"));
  return true;
}

void LinkImpl::OnGoAway() {
  if (peer_drains_) return;
  peer_drains_ = true;
  client_.FailWaiting(DownStatus());
  SendBare(wire::RecordType::kGoAwayAck);
  if (owner_ != nullptr && state_ == State::kUp) owner_->OnGoAway(*this);
}

void LinkImpl::Violate(const absl::Status& why) {
  VERBENA_LOG(kWarning, "link to ", info_.peer, " closed: ", why.message());
  BeginClose(why);
}

void LinkImpl::BeginClose(const absl::Status& why) {
  if (!up()) return;
  writer_.Flush();  // the last words: a cancel, a release, a reply
  state_ = State::kClosing;
  cause_ = why;
  writer_.Close(true);
  control_.Clear();
  engine_impl_.CloseLater(*this);
  fabric_.Close(id_);
}

void LinkImpl::RunClose() {
  const absl::Status why = DownStatus();
  // First: who hears of the end of a call may begin another.
  if (owner_ != nullptr && proved_up_ && !std::exchange(told_closing_, true)) {
    owner_->OnLinkClosing(*this, cause_);
  }
  client_.FailAll(why);
  server_.CancelAll(why);
  transfers_.FailAll(why);
  transfers_.TellStopped();
}

void LinkImpl::SayCause(const absl::Status& cause) const {
  if (absl::IsUnavailable(cause) || absl::IsCancelled(cause)) return;  // that it went is no news
  VERBENA_LOG(kWarning, "link to ", info_.peer, " closed: ", cause.message());
}

void LinkImpl::OnLinkEnding(const absl::Status& cause) {
  if (up()) SayCause(cause);
  BeginClose(cause);
}

void LinkImpl::OnLinkDown(const absl::Status& cause) {
  if (state_ == State::kDown) return;
  const bool by_peer = up();
  state_ = State::kDown;
  if (by_peer) {
    cause_ = cause;
    SayCause(cause);
    writer_.Close(false);
    control_.Clear();
  }
  RunClose();
  transfers_.OnLinkDown();
  groups.ForEach([](LeaseGroup& group) { group.OnLinkDown(); });
  engine_impl_.AddDying(*this);
}

bool LinkImpl::finished() {
  VERBENA_DCHECK(state_ == State::kDown);
  const bool proof_over = proof_ == nullptr || proof_->over();
  return proof_over && client_.live() == 0 && server_.live() == 0 && transfers_.idle() &&
         arrivals.empty() && groups.empty() && setup_jobs == 0;
}

void LinkImpl::Finish() {
  sets.ForEach([](PayloadSetImpl& set) { set.OnLinkGone(); });
  death_watch_.reset();
  if (!proved_up_) {
    if (proved_) std::move(proved_)(absl::Status(cause_.code(), cause_.message()));
  } else if (owner_ != nullptr) {
    owner_->OnLinkDown(this, cause_);
  } else {
    sink_->OnLinkDown(*this, cause_);
  }
}

void LinkImpl::Forget(Arrival& arrival) {
  arrivals.erase(std::remove(arrivals.begin(), arrivals.end(), &arrival), arrivals.end());
}

}  // namespace verbena::session
