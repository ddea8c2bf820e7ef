#pragma once
// The payloads of one received message: what a user holds (PayloadSet) and what the session needs
// to READ and release them. Made in the seat; users may drop or release it on any thread, the rest
// happens in the seat. It outlives its link (fetches are then UNAVAILABLE) and its engine.
#include <atomic>
#include <memory>
#include <vector>

#include "rpc/reactor/work.h"
#include "rpc/session/intrusive_list.h"
#include "rpc/session/session.h"
#include "rpc/wire/payload_table.h"

namespace verbena::session {

// Where its owner says that it lies; of a kind that is unknown here, the host.
::verbena::Device WhereOf(const wire::PayloadEntry& entry);

class EngineImpl;
class LinkImpl;

// How other threads reach an engine that may be gone.
class EngineGate {
 public:
  explicit EngineGate(EngineImpl* engine) : engine_(engine) {}
  // False: the engine is gone, and `work` will not run. `engine`, if given, is set before it can
  // run.
  bool RunInSeat(reactor::Work& work, EngineImpl** engine = nullptr);
  void Close();

 private:
  static constexpr uint32_t kClosed = uint32_t{1} << 31;

  EngineImpl* const engine_;        // until closed
  std::atomic<uint32_t> state_{0};  // threads in RunInSeat, and kClosed
};

// Who must know when the last READ of a set is over.
class SetWatcher {
 public:
  virtual void OnSetDrained() = 0;
  virtual void OnSetGone() = 0;  // the set dies; it was drained

 protected:
  ~SetWatcher() = default;
};

class PayloadSetImpl final : public PayloadSet, public ListNode<PayloadSetImpl> {
 public:
  // The user's reference. `table` without the message's body.
  static PayloadSetRef Create(LinkImpl& link, wire::PayloadTable table);
  static PayloadSetImpl& Of(PayloadSet& set) { return static_cast<PayloadSetImpl&>(set); }

  absl::Span<const Entry> entries() const override { return entries_; }
  absl::string_view transport() const override { return transport_; }
  void Release() override;

  // ---- In the seat.
  LinkImpl* link() const { return link_; }
  EngineImpl& engine() const { return engine_; }
  wire::PayloadEntry& entry(size_t index) { return table_[index]; }
  bool released() const { return stopped_; }
  const absl::Status& why_released() const { return why_; }
  bool idle() const { return transfers_ == 0; }
  void set_watcher(SetWatcher* watcher) { watcher_ = watcher; }
  // Stops fetches with `why`; new ones are refused from now on. Once they are drained, RELEASE is
  // sent if `tell`, and the watcher hears of it (possibly inline: look at idle() afterwards).
  void Stop(const absl::Status& why, bool tell);
  void AddNames();
  void OnTransferStarted() { ++transfers_; }
  void OnTransferEnded();
  void OnLinkGone();

 private:
  PayloadSetImpl(LinkImpl& link, wire::PayloadTable table);
  ~PayloadSetImpl() override;
  static void Drop(PayloadSet* set);
  void DropInSeat();
  void Drained();

  struct ReleaseWork : reactor::Work {
    ReleaseWork(PayloadSetImpl* s, Run r) : reactor::Work(r), set(s) {}
    PayloadSetImpl* set;
  };

  EngineImpl& engine_;
  std::shared_ptr<EngineGate> gate_;
  LinkImpl* link_;
  wire::PayloadTable table_;
  std::vector<Entry> entries_;
  absl::string_view transport_;
  SetWatcher* watcher_ = nullptr;
  uint32_t transfers_ = 0;
  bool stopped_ = false;
  absl::Status why_;
  bool tell_ = false;
  bool told_ = false;
  bool dropped_ = false;
  std::atomic<bool> release_asked_{false};
  ReleaseWork release_work_;
  ReleaseWork drop_work_;
};

}  // namespace verbena::session
