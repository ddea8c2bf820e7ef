#pragma once
// tcp::BulkOwner: the owner's end of a bulk lane. It reads requests, finds the lease, and sends the
// memory straight from where it lies; memory that the CPU may not touch is copied to stages by its
// device, some requests ahead of the one that is sent. Reactor thread only.
//
// Revocation: the row of the lease is looked at before every byte is handed to the socket. A chunk
// that loses its lease half way is filled up with zeros and ends with a trailer that says so; the
// reader uses nothing of it. What the socket took before is a copy; if that is a whole chunk, the
// READ was served before the revocation.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "rpc/fabric/device_copies.h"
#include "rpc/fabric/fabric.h"
#include "rpc/fabric/tcp/bulk_wire.h"
#include "rpc/fabric/tcp/lease_table.h"

namespace verbena::fabric::tcp {

class BulkOwner {
 public:
  BulkOwner(LinkId link, uint64_t link_serial, Lane lane, LeaseTable& leases, DeviceCopies& copies)
      : link_(link), link_serial_(link_serial), lane_(lane), leases_(leases), copies_(copies) {}
  ~BulkOwner();
  BulkOwner(const BulkOwner&) = delete;
  BulkOwner& operator=(const BulkOwner&) = delete;

  void Open(int fd) { fd_ = fd; }
  int fd() const { return fd_; }

  // Takes requests in. Sets `moved` if a byte came. UNAVAILABLE: the lane is gone; other errors:
  // the peer broke the protocol.
  absl::Status Receive(bool& moved);
  // Sends up to `budget` bytes of answers, and takes them off it. Sets `moved`.
  absl::Status Serve(size_t& budget, bool& moved);
  // Something is asked for and not yet answered.
  bool busy() const { return sending_ || count_ > 0; }
  // Waiting for the socket, and for nothing else.
  bool blocked() const { return blocked_; }

  // The device copy for a request has ended.
  void OnStaged(uint32_t place, bool ok);
  // It has been idle: what it does not need is given up.
  void Rest();

 private:
  // What is known of a request before its turn.
  enum class Ahead : uint8_t { kNothing, kCopying, kCopied, kFailed };
  struct Prepared {
    Ahead state = Ahead::kNothing;
    uint32_t stage = Stages::kNone;
    LeaseSlot lease;
  };

  bool Begin();
  // Looks at requests that wait, and has devices copy what they ask for, while there are stages.
  void Prepare();
  bool StartCopy(const Request& request, const LeaseTable::Row& row, Prepared& prepared);
  void GiveStage();
  void BeginAnswer(Error status);
  absl::Status SendSome(size_t budget, size_t& sent);
  size_t total() const { return kAnswerBytes + (trailed_ ? bytes_ + kTrailerBytes : 0); }

  const LinkId link_;
  const uint64_t link_serial_;
  const Lane lane_;
  LeaseTable& leases_;
  DeviceCopies& copies_;
  int fd_ = -1;

  std::array<Request, kRequestsMax> requests_;  // a ring
  std::array<Prepared, kRequestsMax> prepared_;
  uint32_t first_ = 0;
  uint32_t count_ = 0;
  uint32_t ahead_ = 0;     // the first of them that were prepared
  uint32_t sequence_ = 0;  // of the next request
  std::array<std::byte, kRequestsMax * kRequestBytes> in_;
  size_t in_bytes_ = 0;

  // The chunk at hand: answer, `bytes_` of data, trailer; `at_` of it is sent.
  bool sending_ = false;
  bool blocked_ = false;
  bool trailed_ = false;       // data and a trailer follow the answer
  Error broken_ = Error::kOk;  // why the rest is zeros
  LeaseSlot lease_;
  const std::byte* data_ = nullptr;
  uint32_t bytes_ = 0;
  size_t at_ = 0;
  uint32_t answering_ = 0;  // sequence
  std::array<std::byte, kAnswerBytes> answer_;
  std::array<std::byte, kTrailerBytes> trailer_;
  uint32_t stage_ = Stages::kNone;  // that its data lies in
  std::shared_ptr<Stages> stages_;  // once memory of a device was asked for
};

}  // namespace verbena::fabric::tcp
