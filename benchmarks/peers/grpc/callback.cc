// gRPC's callback API: the library's own threads run handlers and completions.
#include <condition_variable>
#include <deque>
#include <mutex>

#include "benchmarks/peers/grpc/grpc_peer.h"

namespace verbena::benchmarks {
namespace {

class Handlers final : public pb::Benchmark::CallbackService {
  grpc::ServerUnaryReactor* Echo(grpc::CallbackServerContext* context,
                                 const pb::EchoMessage* request, pb::EchoMessage* reply) override {
    reply->set_payload(request->payload());
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerUnaryReactor* Put(grpc::CallbackServerContext* context,
                                const pb::EchoMessage* request, pb::PutReply* reply) override {
    reply->set_bytes(request->payload().size());
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

class CallbackWorkload final : public Workload {
 public:
  explicit CallbackWorkload(const Params& params) : basics_(params) {}
  absl::Status Connected() const { return Connect(basics_); }

  absl::Status Run(Window& window) override {
    std::unique_lock lock(mutex_);
    window_ = &window;
    status_ = absl::OkStatus();
    slots_.resize(basics_.outstanding);
    running_ = basics_.outstanding;
    lock.unlock();
    for (Slot& slot : slots_) Begin(slot);
    lock.lock();
    idle_.wait(lock, [this] { return running_ == 0; });
    return status_;
  }

 private:
  struct Slot {
    std::unique_ptr<grpc::ClientContext> context;
    pb::EchoMessage reply;
    pb::PutReply put_reply;
    uint64_t start = 0;
  };
  void Begin(Slot& slot) {
    slot.context = std::make_unique<grpc::ClientContext>();
    slot.start = Ticks();
    auto done = [this, &slot](const grpc::Status& status) { End(slot, status); };
    if (basics_.put) {
      basics_.stub->async()->Put(slot.context.get(), &basics_.request, &slot.put_reply,
                                 std::move(done));
    } else {
      basics_.stub->async()->Echo(slot.context.get(), &basics_.request, &slot.reply,
                                  std::move(done));
    }
  }
  void End(Slot& slot, const grpc::Status& status) {
    const uint64_t now = Ticks();
    {
      std::lock_guard lock(mutex_);
      window_->AddLatency(now - slot.start);
      window_->AddBytes(basics_.request.payload().size());
      if (!status.ok()) status_ = FromGrpc(status);
      if (!status_.ok() || window_->Over()) {
        if (--running_ == 0) idle_.notify_one();
        return;
      }
    }
    Begin(slot);
  }
  ClientBasics basics_;
  std::mutex mutex_;
  std::condition_variable idle_;
  std::deque<Slot> slots_;
  Window* window_ = nullptr;
  absl::Status status_;
  uint64_t running_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Service>> StartCallbackService(const Params& params) {
  return ServiceOf<Handlers>::Start(params);
}

absl::StatusOr<std::unique_ptr<Workload>> StartCallbackWorkload(const Params& params) {
  return ConnectedWorkload<CallbackWorkload>(params);
}

}  // namespace verbena::benchmarks
