// Small calls, and a large field inside the message.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/verbena/verbena_peer.h"

namespace verbena::benchmarks {
namespace {

pb::EchoMessage MessageOf(size_t bytes) {
  pb::EchoMessage message;
  message.set_payload(std::string(bytes, 'x'));
  return message;
}

class Echo final : public Workload {
 public:
  Echo(std::shared_ptr<Channel> channel, const Params& params)
      : stub_(std::move(channel)), request_(MessageOf(params.payload_bytes())) {}
  absl::Status Run(Window& window) override {
    while (!window.Over()) {
      const uint64_t start = Ticks();
      if (absl::Status s = stub_.Echo(request_).GetInto(reply_); !s.ok()) return s;
      window.AddLatency(Ticks() - start);
    }
    return absl::OkStatus();
  }

 private:
  pb::Benchmark::Stub stub_;
  pb::EchoMessage request_;
  pb::EchoMessage reply_;
};

class EchoCoroutine final : public Workload {
 public:
  EchoCoroutine(std::shared_ptr<Channel> channel, const Params& params)
      : stub_(std::move(channel)), request_(MessageOf(params.Number("echo_bytes", 32))) {}
  absl::Status Run(Window& window) override {
    return verbena::Run(EchoUntilOver(stub_, request_, window));
  }

 private:
  pb::Benchmark::Stub stub_;
  pb::EchoMessage request_;
};

// One coroutine per outstanding call, all on the reactor that this thread drives. Its value:
// messages per frame, in the direction that has fewer, or doorbells per tick with one.
class EchoMany final : public Workload {
 public:
  EchoMany(std::shared_ptr<Channel> channel, const Params& params)
      : channel_(channel),
        stub_(std::move(channel)),
        request_(MessageOf(params.payload_bytes())),
        calls_(params.outstanding()),
        value_(params.Text("value")) {}
  absl::Status Run(Window& window) override {
    const ConnectionCounters before = channel_->status().counters;
    const absl::Status status = verbena::Run(All(window));
    window.SetValue(Value(before, channel_->status().counters));
    return status;
  }

 private:
  using EchoCall = Call<pb::EchoMessage>;
  // What the row asks for, of what was counted in its window.
  double Value(const ConnectionCounters& before, const ConnectionCounters& after) const {
    const auto per = [](uint64_t what, uint64_t each) {
      return static_cast<double>(what) / static_cast<double>(std::max<uint64_t>(each, 1));
    };
    if (value_ == "doorbells_per_tick") {
      return per(after.doorbells - before.doorbells, after.send_ticks - before.send_ticks);
    }
    return std::min(
        per(after.messages_sent - before.messages_sent, after.frames_sent - before.frames_sent),
        per(after.messages_received - before.messages_received,
            after.frames_received - before.frames_received));
  }
  // Keeps the pipe full: a call is begun for each one that ends.
  Task<absl::Status> All(Window& window) {
    std::vector<EchoCall> calls;
    for (uint64_t i = 0; i < calls_; ++i) calls.push_back(stub_.Echo(request_));
    absl::Status status;
    for (size_t next = 0; status.ok() && !window.Over(); next = (next + 1) % calls_) {
      auto answer = calls[next].Into(reply_);
      status = co_await answer;
      window.AddOperations(1);
      calls[next] = stub_.Echo(request_);
    }
    for (EchoCall& call : calls) {
      if (!status.ok()) break;
      auto answer = call.Into(reply_);
      status = co_await answer;
      window.AddOperations(1);
    }
    co_return status;
  }
  std::shared_ptr<Channel> channel_;
  pb::Benchmark::Stub stub_;
  pb::EchoMessage request_;
  pb::EchoMessage reply_;
  uint64_t calls_;
  std::string value_;
};

class Put final : public Workload {
 public:
  Put(std::shared_ptr<Channel> channel, const Params& params)
      : stub_(std::move(channel)), request_(MessageOf(params.payload_bytes())) {}
  absl::Status Run(Window& window) override {
    while (!window.Over()) {
      const uint64_t start = Ticks();
      if (absl::Status s = stub_.Put(request_).GetInto(reply_); !s.ok()) return s;
      window.AddLatency(Ticks() - start);
      window.AddBytes(request_.payload().size());
    }
    return absl::OkStatus();
  }

 private:
  pb::Benchmark::Stub stub_;
  pb::EchoMessage request_;
  pb::PutReply reply_;
};

template <class T>
WorkloadPtr Start(const Params& params) {
  auto channel = Connect(params);
  if (!channel.ok()) return channel.status();
  return std::make_unique<T>(*std::move(channel), params);
}

}  // namespace

absl::StatusOr<std::shared_ptr<Channel>> Connect(const Params& params) {
  std::shared_ptr<Channel> channel =
      Channel::Create(params.address(), ChannelOptions().set_require_transport(params.transport()));
  auto first = pb::Benchmark::Stub(channel).Echo(pb::EchoMessage());
  if (auto reply = first.Get(); !reply.ok()) return reply.status();
  const absl::string_view used = first.report().transport;
  if (used == params.transport()) return channel;
  return absl::FailedPreconditionError(
      absl::StrCat("the channel uses ", used, ", not ", params.transport()));
}

Task<absl::Status> EchoUntilOver(pb::Benchmark::Stub stub, const pb::EchoMessage& request,
                                 Window& window, const bool* busy) {
  pb::EchoMessage reply;
  while (!window.Over() || (busy != nullptr && *busy)) {
    const uint64_t start = Ticks();
    auto call = stub.Echo(request);
    auto answer = call.Into(reply);
    const absl::Status status = co_await answer;
    if (!status.ok()) co_return status;
    window.AddLatency(Ticks() - start);
  }
  co_return absl::OkStatus();
}

WorkloadPtr StartEcho(const Params& params) { return Start<Echo>(params); }
WorkloadPtr StartEchoCoroutine(const Params& params) { return Start<EchoCoroutine>(params); }
WorkloadPtr StartEchoMany(const Params& params) { return Start<EchoMany>(params); }
WorkloadPtr StartPut(const Params& params) { return Start<Put>(params); }

}  // namespace verbena::benchmarks
