#include "rpc/fabric/tcp/bulk_reader.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "rpc/base/check.h"
#include "rpc/fabric/tcp/sockets.h"

namespace verbena::fabric::tcp {

struct BulkReader::Gather {
  static constexpr size_t kPiecesMax = 64;
  iovec pieces[kPiecesMax + 1];
  size_t count = 0;
  size_t bytes = 0;

  void Add(std::byte* to, size_t n) {
    pieces[count++] = {to, n};
    bytes += n;
  }
};

BulkReader::~BulkReader() { EndSocket(fd_); }

absl::Status BulkReader::Flush(bool& moved) {
  blocked_ = false;
  while (fd_ >= 0) {
    if (out_sent_ == out_bytes_) out_sent_ = out_bytes_ = 0;
    while (asked_ < reads_.size() && asked_ < kRequestsMax &&
           out_bytes_ + kRequestBytes <= out_.size()) {
      const PostedRead& read = reads_[asked_++];
      Request request;
      request.sequence = ask_sequence_++;
      request.bytes = read.bytes;
      request.key = {read.key.words[0], read.key.words[1]};
      request.offset = read.offset;
      WriteRequest(request, out_.data() + out_bytes_);
      out_bytes_ += kRequestBytes;
    }
    if (out_sent_ == out_bytes_) return absl::OkStatus();
    const ssize_t n =
        send(fd_, out_.data() + out_sent_, out_bytes_ - out_sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n >= 0) {
      moved = true;
      out_sent_ += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      blocked_ = true;
      return absl::OkStatus();
    } else if (errno != EINTR) {
      return SystemError(absl::StatusCode::kUnavailable, "a bulk lane");
    }
  }
  return absl::OkStatus();
}

absl::Status BulkReader::Receive(Ended ended, size_t& budget, bool& moved) {
  while (fd_ >= 0 && budget > 0 && HasStage()) {
    Gather gather;
    GatherInto(gather, budget);
    msghdr message{};
    message.msg_iov = gather.pieces;
    message.msg_iovlen = gather.count;
    const ssize_t n = recvmsg(fd_, &message, MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EAGAIN || errno == EINTR) return absl::OkStatus();
      if (errno == EFAULT && in_data_ && broken_ == Error::kOk) {
        broken_ = Error::kFault;  // the destination is gone
        continue;
      }
      return SystemError(absl::StatusCode::kUnavailable, "a bulk lane");
    }
    if (n == 0) return absl::UnavailableError("tcp: the peer closed a bulk lane");
    moved = true;
    const auto got = static_cast<size_t>(n);
    budget -= std::min(budget, got);
    Advance(got);
    bool more = true;
    while (more) {
      if (absl::Status status = TakeScratch(ended, more); !status.ok()) return status;
    }
    if (got < gather.bytes) return absl::OkStatus();
  }
  return absl::OkStatus();
}

bool BulkReader::HasStage() {
  if (!in_data_) return true;
  PostedRead& read = reads_.front();
  if (read.device == nullptr || read.stage != Stages::kNone) return true;
  if (stages_ == nullptr) stages_ = std::make_shared<Stages>(kStagesUnitBytes, kStagesUnits);
  read.stages = stages_;
  read.stage = stages_->Take(read.bytes);
  return read.stage != Stages::kNone;
}

void BulkReader::Rest() {
  if (stages_ != nullptr && stages_->unused()) stages_.reset();
}

void BulkReader::GatherInto(Gather& gather, size_t budget) {
  if (in_data_) {
    const PostedRead& read = reads_.front();
    size_t left = read.bytes - data_at_;
    size_t room = std::min(left, budget);
    if (broken_ != Error::kOk) {
      room = std::min(room, kDiscardBytes);
      if (room > 0) gather.Add(discard_, room);
      left -= room;
    } else if (read.device != nullptr) {
      if (room > 0) gather.Add(read.stages->At(read.stage) + data_at_, room);
      left -= room;
    } else {
      size_t skip = data_at_;
      for (const LocalPiece& piece : read.pieces) {
        if (room == 0 || gather.count == Gather::kPiecesMax) break;
        if (skip >= piece.bytes) {
          skip -= piece.bytes;
          continue;
        }
        const size_t now = std::min(piece.bytes - skip, room);
        gather.Add(piece.data + skip, now);
        skip = 0;
        room -= now;
        left -= now;
      }
    }
    if (left > 0) return;
  }
  gather.Add(scratch_.data() + scratch_bytes_, scratch_.size() - scratch_bytes_);
}

void BulkReader::Advance(size_t bytes) {
  if (in_data_) {
    const size_t data = std::min<size_t>(bytes, reads_.front().bytes - data_at_);
    data_at_ += data;
    bytes -= data;
  }
  scratch_bytes_ += bytes;
  VERBENA_DCHECK(scratch_bytes_ <= scratch_.size());
}

// Acts on the trailer or the answer that is complete, if one is.
absl::Status BulkReader::TakeScratch(Ended ended, bool& more) {
  more = false;
  Error status = Error::kOk;
  if (in_data_) {
    if (data_at_ < reads_.front().bytes || scratch_bytes_ < kTrailerBytes) return absl::OkStatus();
    absl::Status parsed = ParseTrailer(scratch_.data(), answer_sequence_, status);
    if (!parsed.ok()) return parsed;
    in_data_ = false;
    more = true;
    Finish(ended, broken_ != Error::kOk ? broken_ : status);
    return absl::OkStatus();
  }
  if (scratch_bytes_ < scratch_.size()) return absl::OkStatus();
  if (asked_ == 0) return absl::DataLossError("tcp: an answer to a READ that was not asked for");
  absl::Status parsed =
      ParseAnswer(scratch_.data() + kTrailerBytes, answer_sequence_, reads_.front().bytes, status);
  if (!parsed.ok()) return parsed;
  if (status == Error::kOk) {
    in_data_ = true;
    data_at_ = 0;
    broken_ = Error::kOk;
    scratch_bytes_ = 0;
  } else {
    scratch_bytes_ = kTrailerBytes;  // none follows
    Finish(ended, status);
  }
  return absl::OkStatus();
}

void BulkReader::Finish(Ended ended, Error error) {
  PostedRead read = std::move(reads_.front());
  reads_.pop_front();
  --asked_;
  ++answer_sequence_;
  ended(read, error);
}

void BulkReader::FailAll(Ended ended, Error error) {
  EndSocket(fd_);
  in_data_ = false;
  asked_ = 0;
  while (!reads_.empty()) {
    PostedRead read = std::move(reads_.front());
    reads_.pop_front();
    ended(read, error);
  }
}

}  // namespace verbena::fabric::tcp
