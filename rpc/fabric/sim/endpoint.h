#pragma once
// One endpoint of a sim::Network; see fabric.h for what each method promises.
#include <map>
#include <memory>
#include <utility>

#include "rpc/fabric/sim/state.h"

namespace verbena::fabric::sim {

class Endpoint final : public Fabric {
 public:
  explicit Endpoint(std::shared_ptr<State> state);
  ~Endpoint() override;

  const Traits& traits() const override { return traits_; }
  absl::StatusOr<Offer> Prepare(LinkId link, Side side, absl::string_view peer_blob) override;
  absl::Status Complete(LinkId link, Offer peer, Sockets& sockets) override;
  void Abandon(LinkId link) override;
  absl::StatusOr<Offer> PrepareLane(LinkId link, Lane lane) override;
  absl::Status CompleteLane(LinkId link, Lane lane, Offer peer) override;
  void Start(LinkId link) override;
  bool AcquireFrame(LinkId link, OutFrame& frame) override;
  void Send(LinkId link, absl::Span<const OutFrame> frames) override;
  void SendCopy(LinkId link, const std::byte* frame, uint32_t bytes) override;
  void Discard(LinkId link, const OutFrame& frame) override;
  void Lease(LeaseSlot slot, LinkId link, Lane lane, const memory::RegionRef& region,
             const std::byte* data, size_t bytes) override;
  void Revoke(LeaseSlot slot) override { EndLease(slot, true); }
  void Release(LeaseSlot slot) override { EndLease(slot, false); }
  void Read(ReadSlot slot, LinkId link, Lane lane, const RemoteKey& key, uint64_t offset,
            absl::Span<const LocalPiece> pieces) override;
  void BreakLane(LinkId link, Lane lane) override;
  void Close(LinkId link) override;
  bool Poll(EventSink& sink) override;
  bool HasLater() const override;
  bool Arm() override;
  void Disarm() override;
  int fd() const override { return wake_fd_; }

  // The state's lock is held for the rest.
  Port* Find(LinkId link);
  void Enqueue(int64_t due_ns, Event event);
  // Removes the queued events of `port` and returns those that still owe an answer.
  std::vector<Event> TakeEventsOf(uint64_t port);
  void Die();

 private:
  friend class Network;
  void EndLease(LeaseSlot slot, bool by_force);
  bool Next(Event& event);
  // Whether the sink shall hear of it.
  bool Apply(Port& port, Event& event);
  void Deliver(EventSink& sink, const Event& event);
  void SendOne(Port& port, Port* peer, const OutFrame& frame);
  void Deliver(Port& port, Port* peer, const std::byte* frame, uint32_t bytes, int64_t due_ns);
  int64_t FrameDue();

  std::shared_ptr<State> state_;
  Traits traits_;
  int wake_fd_ = -1;
  bool armed_ = false;
  bool dead_ = false;
  std::map<LinkId, uint64_t> links_;
  std::map<uint64_t, uint64_t> lease_ports_;             // LeaseSlot::word() -> port
  std::map<std::pair<int64_t, uint64_t>, Event> queue_;  // by due time, then order of posting
};

}  // namespace verbena::fabric::sim
