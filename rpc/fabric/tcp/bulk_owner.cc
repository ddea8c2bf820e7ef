#include "rpc/fabric/tcp/bulk_owner.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/fabric/tcp/sockets.h"
#include "rpc/memory/device_regions.h"

namespace verbena::fabric::tcp {
namespace {

// What stands in for memory that may no longer be read.
constexpr size_t kZerosBytes = 64 * 1024;
std::byte zeros[kZerosBytes];

}  // namespace

BulkOwner::~BulkOwner() { EndSocket(fd_); }

absl::Status BulkOwner::Receive(bool& moved) {
  const ssize_t n = recv(fd_, in_.data() + in_bytes_, in_.size() - in_bytes_, MSG_DONTWAIT);
  if (n < 0) {
    if (errno == EAGAIN || errno == EINTR) return absl::OkStatus();
    return SystemError(absl::StatusCode::kUnavailable, "the peer's end of a bulk lane is gone");
  }
  if (n == 0) return absl::UnavailableError("tcp: the peer closed a bulk lane");
  moved = true;
  in_bytes_ += static_cast<size_t>(n);
  size_t at = 0;
  for (; in_bytes_ - at >= kRequestBytes; at += kRequestBytes) {
    if (count_ + sending_ >= kRequestsMax) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "tcp: more than ", kRequestsMax, " READs wait for their answers on one lane"));
    }
    Request& request = requests_[(first_ + count_) % kRequestsMax];
    if (absl::Status parsed = ParseRequest(in_.data() + at, sequence_, request); !parsed.ok()) {
      return parsed;
    }
    ++count_;
    ++sequence_;
  }
  in_bytes_ -= at;
  memmove(in_.data(), in_.data() + at, in_bytes_);
  return absl::OkStatus();
}

absl::Status BulkOwner::Serve(size_t& budget, bool& moved) {
  blocked_ = false;
  while (budget > 0 && !blocked_) {
    Prepare();
    if (!sending_ && !Begin()) break;
    size_t sent = 0;
    if (absl::Status status = SendSome(budget, sent); !status.ok()) return status;
    moved |= sent > 0;
    budget -= std::min(budget, sent);
    at_ += sent;
    if (at_ < total()) continue;
    sending_ = false;
    GiveStage();
  }
  return absl::OkStatus();
}

void BulkOwner::GiveStage() {
  if (stage_ != Stages::kNone) stages_->Give(std::exchange(stage_, Stages::kNone));
}

void BulkOwner::Rest() {
  if (stages_ != nullptr && stages_->unused()) stages_.reset();
}

void BulkOwner::Prepare() {
  for (; ahead_ < count_; ++ahead_) {
    const uint32_t place = (first_ + ahead_) % kRequestsMax;
    Error error = Error::kOk;
    const LeaseTable::Row* row = leases_.Find(requests_[place], link_, lane_, error);
    prepared_[place] = Prepared();
    if (row == nullptr || row->region->device().host_accessible()) continue;
    if (!memory::StillThere(*row->region)) {
      prepared_[place] = {Ahead::kFailed, Stages::kNone, row->slot};
      continue;
    }
    if (requests_[place].bytes != 0 && !StartCopy(requests_[place], *row, prepared_[place])) return;
  }
}

bool BulkOwner::StartCopy(const Request& request, const LeaseTable::Row& row, Prepared& prepared) {
  if (stages_ == nullptr) stages_ = std::make_shared<Stages>(kStagesUnitBytes, kStagesUnits);
  const uint32_t stage = stages_->Take(request.bytes);
  if (stage == Stages::kNone) return false;
  const memory::CopyPiece piece{stages_->At(stage), row.data + request.offset, request.bytes};
  DeviceCopies::Job job;
  job.link = link_;
  job.link_serial = link_serial_;
  job.lane = lane_;
  job.lease = row.slot;
  job.place = request.sequence;
  job.stage = stage;
  job.stages = stages_;
  if (!copies_.Start(row.region->device(), {&piece, 1}, job)) {
    stages_->Give(stage);
    return false;
  }
  leases_.BeginCopy(row.slot);
  prepared = {Ahead::kCopying, stage, row.slot};
  return true;
}

void BulkOwner::OnStaged(uint32_t place, bool ok) {
  Prepared& prepared = prepared_[place % kRequestsMax];
  VERBENA_DCHECK(prepared.state == Ahead::kCopying);
  prepared.state = ok ? Ahead::kCopied : Ahead::kFailed;
}

bool BulkOwner::Begin() {
  if (ahead_ == 0) return false;  // nothing is asked for, or its device's queue is full
  const Request& request = requests_[first_ % kRequestsMax];
  const Prepared& prepared = prepared_[first_ % kRequestsMax];
  if (prepared.state == Ahead::kCopying) return false;
  answering_ = request.sequence;
  bytes_ = request.bytes;
  Error error = Error::kOk;
  if (prepared.state == Ahead::kNothing) {
    const LeaseTable::Row* row = leases_.Find(request, link_, lane_, error);
    if (row != nullptr) {
      lease_ = row->slot;
      data_ = row->data + request.offset;
    }
  } else {
    stage_ = prepared.stage;
    lease_ = prepared.lease;
    if (stage_ != Stages::kNone) data_ = stages_->At(stage_);
    if (!leases_.Live(lease_)) error = Error::kLeaseLost;
    if (prepared.state == Ahead::kFailed) error = Error::kFault;
  }
  BeginAnswer(error);
  ++first_;
  --count_;
  --ahead_;
  return true;
}

void BulkOwner::BeginAnswer(Error status) {
  sending_ = true;
  trailed_ = status == Error::kOk;
  broken_ = Error::kOk;
  at_ = 0;
  WriteAnswer(answering_, status, trailed_ ? bytes_ : 0, answer_.data());
}

absl::Status BulkOwner::SendSome(size_t budget, size_t& sent) {
  iovec pieces[3];
  size_t count = 0;
  size_t asked = 0;
  const auto add = [&](const std::byte* from, size_t bytes) {
    pieces[count++] = {const_cast<std::byte*>(from), bytes};
    asked += bytes;
  };
  if (at_ < kAnswerBytes) add(answer_.data() + at_, kAnswerBytes - at_);
  if (trailed_) {
    const size_t from = std::max(at_, kAnswerBytes) - kAnswerBytes;
    const size_t left = from < bytes_ ? bytes_ - from : 0;
    size_t now = std::min(left, budget);
    if (now > 0) {
      if (broken_ == Error::kOk && !leases_.Live(lease_)) broken_ = Error::kLeaseLost;
      if (broken_ != Error::kOk) now = std::min(now, kZerosBytes);
      add(broken_ == Error::kOk ? data_ + from : zeros, now);
    }
    if (now == left) {
      const size_t trailed = from - std::min<size_t>(from, bytes_);
      if (trailed == 0) WriteTrailer(answering_, broken_, trailer_.data());
      add(trailer_.data() + trailed, kTrailerBytes - trailed);
    }
  }
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = count;
  const ssize_t n = sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n >= 0) {
    sent = static_cast<size_t>(n);
    blocked_ = sent < asked;
  } else if (errno == EAGAIN) {
    blocked_ = true;
  } else if (errno == EFAULT && broken_ == Error::kOk) {
    broken_ = Error::kFault;  // the leased memory is gone; the trailer says so
  } else if (errno != EINTR) {
    return SystemError(absl::StatusCode::kUnavailable, "a bulk lane");
  }
  return absl::OkStatus();
}

}  // namespace verbena::fabric::tcp
