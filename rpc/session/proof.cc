#include "rpc/session/proof.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "rpc/memory/pool.h"
#include "rpc/session/engine_impl.h"
#include "rpc/session/link_impl.h"

namespace verbena::session {

void Proof::Begin(int64_t timeout_ns) {
  timeout_ns_ = timeout_ns;
  Restart();
  if (link_.side() == fabric::Side::kServer) return;
  std::byte ready[wire::kRecordHeaderBytes];
  wire::WriteBare(wire::RecordType::kReady, 0, ready);
  link_.SendControl(ready);
  ready_ = true;
  LeasePattern();
}

void Proof::Restart() {
  due_ns_ = link_.engine_impl().now_ns() + timeout_ns_;
  link_.DueAt(due_ns_);
}

absl::Status Proof::OnReady() {
  if (ready_) return absl::InvalidArgumentError("READY comes once, from the client");
  ready_ = true;
  LeasePattern();
  return absl::OkStatus();
}

Proof::~Proof() {
  if (mine_growing_ != nullptr) mine_growing_->Abandon();
  if (theirs_growing_ != nullptr) theirs_growing_->Abandon();
}

void Proof::LeasePattern() { WithBlock(mine_growing_, &Proof::LeaseNow); }

void Proof::WithBlock(std::shared_ptr<Growing>& growing, void (Proof::*then)(memory::Block)) {
  if (memory::Block block = memory::TryAllocateBlock(wire::kPatternBytes)) {
    (this->*then)(std::move(block));
    return;
  }
  growing = Growing::Start(link_.engine_impl(), wire::kPatternBytes,
                           [this, &growing, then](absl::StatusOr<memory::Block> block) {
                             growing.reset();
                             if (!link_.up()) return;
                             Restart();  // the making of memory is not the peer's fault
                             if (block.ok()) {
                               (this->*then)(*std::move(block));
                             } else {
                               link_.BeginClose(block.status());
                             }
                           });
}

void Proof::LeaseNow(memory::Block block) {
  mine_ = std::move(block);
  std::random_device random;
  seed_ = uint64_t{random()} << 32 | random();
  wire::FillPattern(seed_, {mine_.data(), wire::kPatternBytes});
  group_ = std::make_unique<LeaseGroup>(link_, *this);
  group_->Add(mine_.region(), mine_.data(), wire::kPatternBytes);
  if (group_->Start()) return;
  group_.reset();
  link_.BeginClose(absl::ResourceExhaustedError("no lease for the proof of a new link"));
}

void Proof::OnLeased() {
  wire::PayloadEntry mine;
  mine.lease = group_->name(0);
  mine.bytes = wire::kPatternBytes;
  mine.lanes = 1;
  mine.key_generation = link_.lanes().owner_lane().generation & wire::kKeyGenerationMask;
  mine.pieces.push_back({0, wire::kPatternBytes});
  mine.keys.push_back(group_->key(0).words);
  std::vector<std::byte> record(wire::PatternRecordBytes(mine));
  wire::WritePattern(seed_, mine, record.data());
  group_->SetAnnounced();
  link_.SendControl(record);
}

absl::Status Proof::OnPattern(wire::Pattern pattern) {
  if (!ready_ || pattern_came_)
    return absl::InvalidArgumentError("PATTERN comes once, after READY");
  pattern_ = std::move(pattern);
  pattern_came_ = true;
  WithBlock(theirs_growing_, &Proof::ReadNow);
  return absl::OkStatus();
}

void Proof::ReadNow(memory::Block block) {
  theirs_ = std::move(block);
  pieces.push_back({&memory::HostDevice(), theirs_.data(), wire::kPatternBytes});
  destination_lent = true;  // found wanting soon
  reading_ = true;
  link_.transfers().Start(*this, pattern_.entry, nullptr);
}

void Proof::OnDone(const absl::Status& status) {
  reading_ = false;
  if (!link_.up()) return;
  std::byte expected[wire::kPatternBytes];
  wire::FillPattern(pattern_.seed, expected);
  if (!status.ok()) {
    // A peer that died is not one that cannot.
    const bool gone = absl::IsUnavailable(status) || absl::IsDataLoss(status);
    link_.BeginClose(
        absl::Status(gone ? absl::StatusCode::kUnavailable : absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("the pattern READ failed: ", status.ToString())));
    return;
  }
  if (std::memcmp(expected, theirs_.data(), wire::kPatternBytes) != 0) {
    link_.BeginClose(absl::FailedPreconditionError("the pattern READ from the peer is wrong"));
    return;
  }
  read_ok_ = true;
  theirs_.Reset();
  std::byte proved[wire::kRecordHeaderBytes];
  wire::WriteBare(wire::RecordType::kProved, 0, proved);
  link_.SendControl(proved);
  MaybeProved();
}

absl::Status Proof::OnProved() {
  if (group_ == nullptr || proved_by_peer_)
    return absl::InvalidArgumentError("PROVED comes once, after PATTERN");
  proved_by_peer_ = true;
  group_->End();
  MaybeProved();
  return absl::OkStatus();
}

void Proof::MaybeProved() {
  if (read_ok_ && proved_by_peer_) link_.OnProved();
}

void Proof::OnLeasesEnded() {
  const Error error = group_->error();
  group_.reset();
  mine_.Reset();
  if (error == Error::kOk) return;
  link_.BeginClose(error == Error::kUnsupported
                       ? absl::FailedPreconditionError("the transport cannot lease memory")
                       : WhyNotLeased(error, "memory"));
}

void Proof::Expire(int64_t now_ns) {
  if (read_ok_ && proved_by_peer_) return;
  if (mine_growing_ != nullptr || theirs_growing_ != nullptr) return Restart();
  if (now_ns - due_ns_ < 0) {
    link_.DueAt(due_ns_);
    return;
  }
  link_.BeginClose(absl::DeadlineExceededError(absl::StrCat(
      "not proved in time, ", absl::FormatDuration(absl::Nanoseconds(timeout_ns_)), ": ",
      ready_ ? "" : "no READY; ", read_ok_ ? "" : "the peer's pattern was not READ; ",
      proved_by_peer_ ? "" : "the peer has not READ ours")));
}

}  // namespace verbena::session
