#pragma once
// internal::UnaryServerCall: one unary call being served. Kept in a free list of its method and
// reactor, with its request and reply objects, so that a small call allocates nothing.
//
// The stages: Begin (in the seat: parses) -> Run (user code: the handler) -> Finish (user code: who
// still waits on the context hears of the end) -> SendReply (in the seat) -> OnReplyLeasesEnded (in
// the seat: back to the free list).
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "rpc/reactor/reactor.h"
#include "rpc/session/session.h"
#include "rpc/tensor/message_reader.h"
#include "rpc/tensor/message_writer.h"
#include "verbena/service.h"

namespace verbena::internal {

class ServerCore;
class UnaryServerCall;

// One method of one server, as the links know it (the session's cookie).
struct ServedMethod {
  const MethodInfo* info = nullptr;
  Service* service = nullptr;
  ServerCore* server = nullptr;
  uint64_t request_bytes_max = 0;
  // Free calls, by reactor; each list in that reactor's seat.
  std::vector<std::vector<UnaryServerCall*>> free;
  std::atomic<uint64_t> exceptions{0};  // that its handler has thrown
};

class UnaryServerCall final : public session::ServerCall {
 public:
  // In the seat of the link's reactor.
  static UnaryServerCall* Take(ServedMethod& method, reactor::Reactor& reactor);
  explicit UnaryServerCall(ServedMethod& method, reactor::Reactor& reactor);
  ~UnaryServerCall() override;

  void Begin(session::Link& link, session::RequestView& request);
  void OnCancel(const absl::Status& why, bool peer_gone) override;
  void OnReplyLeasesEnded() override;

 private:
  template <void (UnaryServerCall::*kStage)()>
  struct StageWork : reactor::Work {
    explicit StageWork(UnaryServerCall* c)
        : Work([](reactor::Work* work) { (static_cast<StageWork*>(work)->call->*kStage)(); }),
          call(c) {}
    UnaryServerCall* call;
  };

  // ---- user code: the reactor's own thread, without the seat
  void Run();
  void RunHandler();
  void RunBlocking();
  void TakeResult();  // the handler's coroutine ended
  void Finish();
  void RunCancel();
  // ---- in the seat
  void CheckTrailing();
  void SendReply();
  void CancelTold();
  void Recycle();

  ServedMethod& method_;
  reactor::Reactor& reactor_;
  session::Link* link_ = nullptr;
  ServerContext context_;
  void* request_;
  void* reply_;
  std::optional<Task<absl::Status>> task_;
  absl::Status status_;
  MessageReader reader_;
  MessageWriter writer_;
  std::vector<std::pair<absl::string_view, absl::string_view>> trailing_;
  bool cancel_queued_ = false;  // in the seat: RunCancel comes
  bool over_ = false;           // in the seat
  bool lingers_ = false;        // in the seat: the server waits for it
  bool sleepers_left_ = false;  // they were woken and will read the context once more
  StageWork<&UnaryServerCall::Run> run_work_;
  StageWork<&UnaryServerCall::TakeResult> result_work_;
  StageWork<&UnaryServerCall::Finish> finish_work_;
  StageWork<&UnaryServerCall::SendReply> reply_work_;
  StageWork<&UnaryServerCall::RunCancel> cancel_work_;
  StageWork<&UnaryServerCall::CancelTold> told_work_;
};

}  // namespace verbena::internal
