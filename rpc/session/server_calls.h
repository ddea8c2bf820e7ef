#pragma once
// Calls of one link, server side. A small call is a slot, at the index that the client chose; one
// whose request must be READ, that has payloads, or whose reply must wait has a ServerExchange
// beside. A reply's leases outlive its slot.
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "rpc/session/arrival.h"
#include "rpc/session/departure.h"
#include "rpc/session/intrusive_list.h"
#include "rpc/session/payload_set.h"
#include "rpc/session/session.h"

namespace verbena::session {

class LinkImpl;
class ServerCalls;

class ServerExchange final : public ListNode<ServerExchange>,
                             public DepartureOwner,
                             public ArrivalOwner,
                             public SetWatcher {
 public:
  ServerExchange(ServerCalls& calls_in, LinkImpl& link, uint32_t index_in)
      : calls(calls_in), index(index_in) {
    ResetReply(link);
  }
  ~ServerExchange();

  enum class Step : uint8_t {
    kArriving,  // the request is READ
    kRunning,   // the sink has it
    kDraining,  // answered; READs of the request's payloads are still posted
    kBudget,    // waits for announced bytes
    kLeasing,
    kReady,    // waits for credits
    kReplied,  // the slot is given back; waits for the end of the reply's leases
  };

  void OnLeased() override;
  void OnLeasesEnded() override;
  void OnNoMemory(const absl::Status& why) override;
  uint64_t BodyBytesMax() override;
  void OnArrived(const absl::Status& status) override;
  void OnSetDrained() override;
  void OnSetGone() override { set = nullptr; }
  void ResetReply(LinkImpl& link) { reply.emplace(link, *this, wire::MessageKind::kReply); }

  ServerCalls& calls;
  uint32_t index;  // of its slot; ~0 once that is given back
  Step step = Step::kRunning;
  ServerCall* call = nullptr;
  uint64_t body_bytes_max = 0;
  uint32_t method = 0;  // the link's number
  std::unique_ptr<Arrival> arrival;
  PayloadSetImpl* set = nullptr;  // the request's
  bool waits_for_set = false;
  std::optional<Departure> reply;
  int64_t budget_due_ns = 0;
};

class ServerCalls {
 public:
  ServerCalls(LinkImpl& link, uint32_t open_max) : link_(link), open_max_(open_max) {}
  ~ServerCalls();

  void OnRequest(wire::RecordHeader header, absl::Span<const std::byte> record);
  void OnCancel(uint32_t word);
  void Reply(ServerCall& call, const absl::Status& status, const Outgoing& message);
  void Resume();
  void Expire(int64_t now_ns);
  // The link is going: whoever runs is told; whoever has not reached the sink ends.
  void CancelAll(const absl::Status& why);
  uint32_t live() const { return open_ + replied_; }

  // By the exchange.
  void OnArrived(ServerExchange& exchange, const absl::Status& status);
  void OnSetDrained(ServerExchange& exchange);
  void OnNoMemory(ServerExchange& exchange, const absl::Status& why);
  void OnReplyLeased(ServerExchange& exchange);
  void OnReplyLeasesEnded(ServerExchange& exchange);

 private:
  struct Slot {
    ServerCall* call = nullptr;
    ServerExchange* exchange = nullptr;
    int64_t deadline_ns = 0;
    uint16_t generation = 0;
    bool open = false;
    bool cancelled = false;
  };
  static constexpr uint32_t kChunkSlots = 64;

  Slot& At(uint32_t index) { return chunks_[index / kChunkSlots][index % kChunkSlots]; }
  Slot* FindOpen(uint32_t word);
  Slot* OpenSlot(uint32_t index);
  void AddChunk(uint32_t chunk);
  void FreeSlot(Slot& slot) {
    slot.call = nullptr;
    slot.exchange = nullptr;
    slot.open = false;
    --open_;
  }
  absl::Status Deliver(Slot& slot, uint32_t index, uint32_t method, RequestView& request,
                       wire::PayloadTable* table);
  // OK, or why the sink shall not see a request with such a body.
  absl::Status WhyRefused(uint32_t method, size_t body_bytes) const;
  // The sink gets it.
  void Give(Slot& slot, uint32_t index, uint32_t method, RequestView& request);
  void DeliverSlow(uint32_t index, uint32_t method, absl::Span<const std::byte> record);
  void Refuse(uint32_t index, const absl::Status& status);
  bool StageFast(Slot& slot, uint32_t index, const absl::Status& status, const Outgoing& message);
  void ReplySlow(Slot& slot, uint32_t index, const absl::Status& status, const Outgoing& message);
  void SendReply(ServerExchange& exchange);
  void ReplaceReply(ServerExchange& exchange, const absl::Status& status);
  bool StageReady(ServerExchange& exchange);
  void EndReplied(ServerExchange& exchange);
  // The session forgets the call; its object may serve another once it has been told.
  void Forget(ServerCall* call);
  void CancelSlot(Slot& slot, const absl::Status& why, bool peer_gone);
  ServerExchange& ExchangeOf(Slot& slot, uint32_t index);

  LinkImpl& link_;
  const uint32_t open_max_;
  std::vector<std::unique_ptr<Slot[]>> chunks_;  // null: no call has used it yet
  uint32_t open_ = 0;
  uint32_t replied_ = 0;
  uint32_t delivering_ = ~0u;  // the slot whose OnRequest runs, until it is bound to its call
  List<ServerExchange> budget_;
  List<ServerExchange> ready_;
  List<ServerExchange> others_;
};

}  // namespace verbena::session
