// gRPC's completion-queue API: one polling thread per process, which is its fastest on two cores.
#include <deque>
#include <optional>
#include <thread>

#include "benchmarks/peers/grpc/grpc_peer.h"

namespace verbena::benchmarks {
namespace {

// One accepted or awaited call of the server; renews itself.
class ServerCall {
 public:
  virtual ~ServerCall() = default;
  virtual void Proceed(bool ok) = 0;
};

template <class Reply>
class UnaryCall final : public ServerCall {
 public:
  using Async = pb::Benchmark::AsyncService;
  using Request = void (*)(Async&, grpc::ServerContext*, pb::EchoMessage*,
                           grpc::ServerAsyncResponseWriter<Reply>*, grpc::ServerCompletionQueue*,
                           void*);
  using Handler = void (*)(const pb::EchoMessage&, Reply&);

  UnaryCall(Async& service, grpc::ServerCompletionQueue& queue, Request request, Handler handler)
      : service_(service), queue_(queue), request_call_(request), handler_(handler) {
    Await();
  }
  void Proceed(bool ok) override {
    if (!ok) return;  // shutting down
    if (answered_) return Await();
    handler_(request_, reply_);
    answered_ = true;
    writer_->Finish(reply_, grpc::Status::OK, this);
  }

 private:
  void Await() {
    answered_ = false;
    writer_.reset();
    context_.emplace();
    writer_.emplace(&*context_);
    request_call_(service_, &*context_, &request_, &*writer_, &queue_, this);
  }
  Async& service_;
  grpc::ServerCompletionQueue& queue_;
  Request request_call_;
  Handler handler_;
  std::optional<grpc::ServerContext> context_;
  std::optional<grpc::ServerAsyncResponseWriter<Reply>> writer_;
  pb::EchoMessage request_;
  Reply reply_;
  bool answered_ = false;
};

class QueueService final : public Service {
 public:
  explicit QueueService(const Params& params) {
    grpc::ServerBuilder builder;
    int port = 0;
    const std::string listen = ListenOn(builder, params, &port);
    builder.RegisterService(&service_);
    queue_ = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    if (!server_) return;
    address_ = AddressOf(params, listen, port);
    for (uint64_t i = 0; i < params.outstanding() + 1; ++i) Accept();
    std::thread([this] { Poll(); }).detach();  // ends with the process
  }
  bool started() const { return server_ != nullptr; }
  std::string address() const override { return address_; }

 private:
  void Accept() {
    calls_.push_back(std::make_unique<UnaryCall<pb::EchoMessage>>(
        service_, *queue_,
        [](auto& s, auto* context, auto* request, auto* writer, auto* queue, void* tag) {
          s.RequestEcho(context, request, writer, queue, queue, tag);
        },
        [](const pb::EchoMessage& q, pb::EchoMessage& r) { r.set_payload(q.payload()); }));
    calls_.push_back(std::make_unique<UnaryCall<pb::PutReply>>(
        service_, *queue_,
        [](auto& s, auto* context, auto* request, auto* writer, auto* queue, void* tag) {
          s.RequestPut(context, request, writer, queue, queue, tag);
        },
        [](const pb::EchoMessage& q, pb::PutReply& r) { r.set_bytes(q.payload().size()); }));
  }
  void Poll() {
    void* tag = nullptr;
    bool ok = false;
    while (queue_->Next(&tag, &ok)) static_cast<ServerCall*>(tag)->Proceed(ok);
  }
  pb::Benchmark::AsyncService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::deque<std::unique_ptr<ServerCall>> calls_;
  std::string address_;
};

class QueueWorkload final : public Workload {
 public:
  explicit QueueWorkload(const Params& params) : basics_(params), slots_(params.outstanding()) {}
  absl::Status Connected() const { return Connect(basics_); }

  absl::Status Run(Window& window) override {
    uint64_t running = 0;
    for (Slot& slot : slots_) {
      Begin(slot);
      ++running;
    }
    absl::Status status;
    void* tag = nullptr;
    bool ok = false;
    while (running > 0 && queue_.Next(&tag, &ok)) {
      Slot& slot = *static_cast<Slot*>(tag);
      window.AddLatency(Ticks() - slot.start);
      window.AddBytes(basics_.request.payload().size());
      if (!slot.status.ok()) status = FromGrpc(slot.status);
      if (!status.ok() || window.Over()) {
        --running;
      } else {
        Begin(slot);
      }
    }
    return status;
  }

 private:
  struct Slot {
    std::optional<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientAsyncResponseReader<pb::EchoMessage>> echo;
    std::unique_ptr<grpc::ClientAsyncResponseReader<pb::PutReply>> put;
    pb::EchoMessage reply;
    pb::PutReply put_reply;
    grpc::Status status;
    uint64_t start = 0;
  };
  void Begin(Slot& slot) {
    slot.echo.reset();
    slot.put.reset();
    slot.context.emplace();
    slot.start = Ticks();
    if (basics_.put) {
      slot.put = basics_.stub->AsyncPut(&*slot.context, basics_.request, &queue_);
      slot.put->Finish(&slot.put_reply, &slot.status, &slot);
    } else {
      slot.echo = basics_.stub->AsyncEcho(&*slot.context, basics_.request, &queue_);
      slot.echo->Finish(&slot.reply, &slot.status, &slot);
    }
  }
  ClientBasics basics_;
  grpc::CompletionQueue queue_;
  std::deque<Slot> slots_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Service>> StartQueueService(const Params& params) {
  auto service = std::make_unique<QueueService>(params);
  if (!service->started()) return absl::UnavailableError("gRPC did not start");
  return service;
}

absl::StatusOr<std::unique_ptr<Workload>> StartQueueWorkload(const Params& params) {
  return ConnectedWorkload<QueueWorkload>(params);
}

}  // namespace verbena::benchmarks
