#pragma once
// Calls of one link, client side. A small call is a slot: nothing is allocated for it. A call that
// must wait, or that has payloads either way, has a ClientExchange beside.
//
// A slot is free again when the server's reply is there; the server answers every request,
// cancelled ones too. So slots in use are exactly the calls that the server may think open.
#include <cstdint>
#include <memory>
#include <vector>

#include "rpc/session/arrival.h"
#include "rpc/session/departure.h"
#include "rpc/session/intrusive_list.h"
#include "rpc/session/session.h"

namespace verbena::session {

class ClientCalls;
class LinkImpl;

class ClientExchange final : public ListNode<ClientExchange>,
                             public DepartureOwner,
                             public ArrivalOwner {
 public:
  ClientExchange(ClientCalls& calls_in, LinkImpl& link, ClientCall& call_in)
      : calls(calls_in), call(&call_in), request(link, *this, wire::MessageKind::kRequest) {}
  ~ClientExchange();

  enum class Step : uint8_t {
    kBudget,   // waits for announced bytes
    kLeasing,  // waits for its leases
    kReady,    // waits for credits or an open call
    kSent,     // has a slot
    kReplied,  // the slot is given back; waits for its leases or the reply's READ
  };

  void OnLeased() override;
  void OnLeasesEnded() override;
  void OnNoMemory(const absl::Status& why) override;
  uint64_t BodyBytesMax() override;
  void OnArrived(const absl::Status& status) override;

  ClientCalls& calls;
  ClientCall* call;  // null once it was told, or will be by FailLater
  Departure request;
  Step step = Step::kBudget;
  uint32_t slot = ~0u;
  bool ending = false;  // with end_status, as soon as no lease is left
  absl::Status end_status;
  std::unique_ptr<Arrival> arrival;  // the reply, if it is kept
  bool reply_complete = false;
};

class ClientCalls {
 public:
  ClientCalls(LinkImpl& link, uint32_t open_max) : link_(link), open_max_(open_max) {}
  ~ClientCalls();

  void Start(ClientCall& call, const Outgoing& request);
  void Cancel(ClientCall& call, const absl::Status& why);
  void OnReply(wire::RecordHeader header, absl::Span<const std::byte> record);
  // Credits, budget or an open call may have come back.
  void Resume();
  void Expire(int64_t now_ns);
  // Ends all: now, or those with leases when they are gone.
  void FailAll(const absl::Status& why);
  // Ends those that have not left.
  void FailWaiting(const absl::Status& why);
  uint32_t live() const { return live_; }
  bool waiting() const { return !ready_.empty(); }

  // By the exchange.
  void OnExchangeLeased(ClientExchange& exchange);
  void Settle(ClientExchange& exchange);

 private:
  struct Slot {
    ClientCall* call = nullptr;  // null: cancelled; the reply is dropped
    ClientExchange* exchange = nullptr;
    uint32_t next_free = ~0u;
    uint16_t generation = 0;
    bool open = false;
  };
  static constexpr uint32_t kChunkSlots = 64;

  Slot& At(uint32_t index) { return chunks_[index / kChunkSlots][index % kChunkSlots]; }
  Slot* FindOpen(uint32_t word);
  uint32_t TakeSlot();
  uint32_t NewSlot();
  void FreeSlot(Slot& slot, uint32_t index);
  void StartSlow(ClientCall& call, const Outgoing& request);
  bool StageFast(ClientCall& call, const Outgoing& request);
  bool StageReady(ClientExchange& exchange);
  void WriteHeader(const ClientCall& call, uint32_t method, uint32_t index, uint8_t flags,
                   uint32_t bytes, std::byte* to);
  void Open(ClientCall& call, ClientExchange* exchange, uint32_t index);
  void ReplySlow(Slot& slot, uint32_t index, wire::RecordHeader header,
                 absl::Span<const std::byte> record);
  static void DeliverTooLarge(ClientCall& call, uint64_t bytes);
  void DropTable(absl::Span<const wire::PayloadEntry> table);
  void DropReply(wire::RecordHeader header, absl::Span<const std::byte> record);
  void EndExchange(ClientExchange& exchange, absl::Status why);
  void Fail(ClientCall& call, const absl::Status& why);
  void Deliver(ClientExchange& exchange);
  uint32_t TimeoutUs(const ClientCall& call) const;
  uint64_t WideTimeoutUs(const ClientCall& call) const;

  LinkImpl& link_;
  const uint32_t open_max_;
  std::vector<std::unique_ptr<Slot[]>> chunks_;
  uint32_t used_ = 0;  // slots ever used
  uint32_t free_ = ~0u;
  uint32_t open_ = 0;  // slots in use
  uint32_t live_ = 0;  // calls that have not had their OnReply queued or made
  List<ClientExchange> budget_;
  List<ClientExchange> ready_;
  List<ClientExchange> others_;  // leasing, sent, replied
};

}  // namespace verbena::session
