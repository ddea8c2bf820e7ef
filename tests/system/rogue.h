#pragma once
// Peers that set a link up as the protocol says, and then do not keep to it.
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "rpc/base/unique_fd.h"
#include "rpc/fabric/fabric.h"

namespace verbena::system_test {

UniqueFd ConnectTo(const std::string& address);

// The client's end of a link whose handshake was right, without a session: nothing here counts
// credits.
class Flooder final : private fabric::EventSink {
 public:
  Flooder(const std::string& address, const std::string& transport);
  ~Flooder();
  // Sends good frames without looking at what was granted; whether the link went down in time.
  bool Flood(absl::Duration timeout);

 private:
  void Open(const std::string& address);
  void SendFrame(bool ready, uint32_t bytes);
  void OnFrame(LinkId, absl::Span<const std::byte>) override {}
  void OnSendable(LinkId) override {}
  void OnLeased(LeaseSlot, Error, const fabric::RemoteKey&) override {}
  void OnRevoked(LeaseSlot) override {}
  void OnReadDone(ReadSlot, Error) override {}
  void OnLaneDown(LinkId, Lane, Error) override {}
  void OnLinkDown(LinkId, const absl::Status&) override { down_ = true; }

  std::vector<std::unique_ptr<fabric::Fabric>> fabrics_;
  fabric::Fabric* fabric_ = nullptr;
  UniqueFd stream_;  // where the fabric does not take it
  bool down_ = false;
};

// A proved link of this process's engine, into whose frames random records are written; until it is
// closed by the peer, or so many batches had no effect. The latter is false.
bool SendRandomRecords(const std::string& address, const std::string& transport, uint32_t seed);

// As SendRandomRecords, over shm, with good frames that no credits were given for.
bool FloodProved(const std::string& address);

}  // namespace verbena::system_test
