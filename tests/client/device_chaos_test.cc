// Fetches between devices in everything at once: streams that stand still or not, cancelled calls,
// servers that go, devices without room. From seeds.
#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "rpc/memory/fake_stream.h"
#include "rpc/reactor/reactors.h"
#include "rpc/session/engines.h"
#include "tests/client/device_fixture.h"
#include "tests/client/fixture.h"

namespace verbena {
namespace {

// What all reactors of this process still do.
struct Live {
  uint64_t calls = 0, leases = 0, fetches = 0;
};
Live CountLive() {
  Live live;
  for (reactor::Reactor* reactor : reactor::Reactors()) {
    struct Count : reactor::Work {
      explicit Count(reactor::Reactor& r)
          : Work([](reactor::Work* work) { static_cast<Count*>(work)->Run(); }), reactor(r) {
        reactor.PostSeat(*this);
        reactor.DriveUntil(done);
      }
      void Run() {
        counters = session::EngineOf(reactor).counters();
        reactor::Reactor& home = reactor;  // this may be gone once it is done
        const std::atomic<uint32_t>& flag = done;
        done.store(1);
        home.Wake(flag);
      }
      reactor::Reactor& reactor;
      session::Engine::Counters counters;
      std::atomic<uint32_t> done{0};
    } count(*reactor);
    live.calls += count.counters.calls_live;
    live.leases += count.counters.leases_live;
    live.fetches += count.counters.fetches_live;
  }
  return live;
}

// More than a chunk of tcp, and than a stage.
constexpr int64_t kCounts[] = {3, 5000, 400000};
constexpr int kFrom = 20, kTo = 21, kOther = 22;

class Chaos {
 public:
  Chaos(uint32_t seed, std::string transport) : random_(seed), transport_(std::move(transport)) {
    for (const int i : {kFrom, kTo, kOther}) Fake(i);
    for (const int64_t count : kCounts) given_.emplace_back(Shape(count), kFrom);
    Fake(kFrom).Split(given_[1].allocation.base, 2 * 4096);
    mock_.on_Infer = [this](ServerContext&, const Parcel<test::InferRequest>& request,
                            Parcel<test::InferReply>& reply) { return Serve(request, reply); };
    server_ = *Server::Start(ServerOptions().set_listen("127.0.0.1:0").add_service(mock_));
    for (int i = 0; i < 3; ++i) {
      channels_.push_back(Channel::Create(
          server_->address(), ChannelOptions()
                                  .set_require_transport(transport_)
                                  .set_backoff(absl::Milliseconds(1), absl::Milliseconds(5))));
    }
    for (int i = 0; i < 12; ++i) streams_.push_back(&NewStream());
  }
  void Step() {
    switch (Up(16)) {
      case 0:
      case 1:
        return Get();
      case 2:
      case 3:
      case 4:
      case 5:
        return Fetch();
      case 6:
        if (!fetches_.empty()) fetches_[Up(fetches_.size())].call->Cancel();
        return;
      case 7:
        if (!fetches_.empty()) fetches_[Up(fetches_.size())].call.reset();
        std::erase_if(fetches_, [](const Fetched& f) { return !f.call.has_value(); });
        return;
      case 8:
      case 9:
        return streams_[Up(streams_.size())]->Launch([] {});
      case 10:
      case 11:
        return streams_[Up(streams_.size())]->Finish(static_cast<int>(Up(4)));
      case 12:
        return Send();
      case 13:
        if (!calls_.empty()) calls_[Up(calls_.size())].Cancel();
        if (!replies_.empty() && Up(2) == 0) {
          replies_.erase(replies_.begin() + static_cast<ptrdiff_t>(Up(replies_.size())));
        }
        return;
      case 14:
        if (Up(3) == 0) Fake(kTo).LetCopies(static_cast<int64_t>(Up(3)) - 1);
        if (Up(6) == 0) {
          Fake(kTo).RefuseImports(Up(2) == 0 ? absl::OkStatus()
                                             : absl::UnimplementedError("no peer access"));
        }
        if (Up(6) == 0) {
          Fake(kOther).RefuseAllocations(Up(2) == 0 ? absl::OkStatus()
                                                    : absl::ResourceExhaustedError("full"));
        }
        return;
      case 15:
        if (Up(20) == 0) Restart();
        return;
    }
  }
  void End() {
    for (const int i : {kFrom, kTo, kOther}) {
      Fake(i).LetCopies(-1);
      Fake(i).RefuseImports(absl::OkStatus());
      Fake(i).RefuseAllocations(absl::OkStatus());
    }
    for (memory::FakeStream* stream : streams_) stream->Finish(100000);
    for (Fetched& fetch : fetches_) {
      INFO("fetch " << fetch.what);
      absl::StatusOr<Tensor> got = std::move(*fetch.call).Get();
      CheckTyped(got.status());
      if (!got.ok()) continue;
      const std::vector<float> sent = Counting(static_cast<size_t>(fetch.end));
      const std::vector<float> want(sent.begin() + fetch.begin, sent.end());
      CHECK(Eventually([&] { return Values(*got) == want; }));
    }
    for (auto& call : calls_) CheckTyped(std::move(call).Get().status());
    fetches_.clear();
    replies_.clear();
    channels_.clear();
    server_->Shutdown();
    server_.reset();
    Live live;
    const bool none = Eventually([&] {
      live = CountLive();
      return live.calls + live.leases + live.fetches == 0;
    });
    INFO(live.calls << " calls, " << live.leases << " leases, " << live.fetches << " fetches");
    CHECK(none);
  }

 private:
  struct Fetched {
    std::optional<Call<Tensor>> call;
    int64_t begin = 0, end = 0;
    std::string what;
  };
  size_t Up(size_t below) { return random_() % below; }
  memory::FakeStream& AnyStream() { return *streams_[Up(streams_.size())]; }
  Task<absl::Status> Serve(const Parcel<test::InferRequest>& request,
                           Parcel<test::InferReply>& reply) {
    const std::string which = request->model();
    if (which.size() == 1) {
      const Tensor& tensor = given_[static_cast<size_t>(which[0] - '0')].tensor;
      reply.Attach(*reply->mutable_output(), tensor);
      co_return absl::OkStatus();
    }
    const auto index = static_cast<size_t>(std::stoi(which));
    Placement place = Placement::On(Device::Fake(kTo));
    if (index % 3 != 0) {
      place = place.InStream(DeviceStream(streams_[index % streams_.size()]));
    }
    auto fetch = request.Fetch(request->input(), place);
    absl::StatusOr<Tensor> got = co_await fetch;
    co_return got.status();
  }
  void Get() {
    if (replies_.size() > 8) return;
    Parcel<test::InferRequest> request;
    const size_t which = Up(given_.size());
    request->set_model(std::to_string(which));
    auto reply = test::Inference::Stub(channels_[Up(channels_.size())]).Infer(request).Get();
    CheckTyped(reply.status());
    if (reply.ok()) replies_.emplace_back(*std::move(reply), which);
  }
  void Fetch() {
    if (replies_.empty() || fetches_.size() > 150) return;
    auto& [reply, which] = replies_[Up(replies_.size())];
    const int64_t count = kCounts[which];
    Fetched f;
    f.end = count;
    TensorSlice slice;
    if (Up(3) == 0) {
      f.begin = static_cast<int64_t>(Up(static_cast<size_t>(count)));
      f.end = f.begin + 1 + static_cast<int64_t>(Up(static_cast<size_t>(count - f.begin)));
      slice = TensorSlice(f.begin, f.end);
    }
    const int where = static_cast<int>(Up(6));
    Placement place = Placement::On(Device::Host());
    if (where >= 1) place = Placement::On(Device::Fake(where >= 4 ? kOther : kTo));
    if (where >= 1 && Up(4) != 0) place = place.InStream(DeviceStream(&AnyStream()));
    f.what = std::to_string(which) + " to " + std::to_string(where);
    f.call.emplace(reply.Fetch(reply->output(), slice, place));
    fetches_.push_back(std::move(f));
  }
  void Send() {
    if (calls_.size() > 40) return;
    Parcel<test::InferRequest> request;
    request->set_model(std::to_string(10 + Up(50)));
    request.Attach(*request->mutable_input(), given_[Up(given_.size())].tensor);
    CallOptions options;
    if (Up(2) == 0) options.set_timeout(absl::Milliseconds(1 + Up(20)));
    calls_.push_back(
        test::Inference::Stub(channels_[Up(channels_.size())]).Infer(request, options));
  }
  void Restart() {
    // Its own streams have to move for that.
    Fake(kTo).LetCopies(-1);
    for (memory::FakeStream* stream : streams_) stream->Finish(1000);
    const std::string address = server_->address();
    server_->Shutdown();
    server_ = *Server::Start(ServerOptions().set_listen(address).add_service(mock_));
  }
  std::vector<float> Values(const Tensor& tensor) {
    if (!(tensor.device() == Device::Host()))
      return ValuesOf(Fake(tensor.device().index()), tensor);
    const auto values = *tensor.Values<float>();
    return {values.begin(), values.end()};
  }
  void CheckTyped(const absl::Status& status) {
    INFO(status.ToString());
    CHECK(status.code() != absl::StatusCode::kInternal);
    CHECK(status.code() != absl::StatusCode::kUnknown);
    CHECK(status.code() != absl::StatusCode::kDataLoss);
    CHECK(status.code() != absl::StatusCode::kOutOfRange);
  }

  std::mt19937 random_;
  const std::string transport_;
  std::deque<UserTensor> given_;
  std::vector<memory::FakeStream*> streams_;  // outlive every copy
  test::Inference::Mock mock_;
  std::unique_ptr<Server> server_;
  std::vector<std::shared_ptr<Channel>> channels_;
  std::deque<std::pair<Parcel<test::InferReply>, size_t>> replies_;
  std::vector<Fetched> fetches_;
  std::vector<Call<Parcel<test::InferReply>>> calls_;
};

TEST_CASE("whatever happens to fetches between devices, each ends, typed or whole",
          "[client][device][chaos]") {
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    for (const char* transport : {"shm", "tcp"}) {
      INFO("seed " << seed << " over " << transport);
      Chaos chaos(seed, transport);
      for (int i = 0; i < 400; ++i) chaos.Step();
      chaos.End();
    }
  }
}

TEST_CASE("a thousand calls whose fetches wait for a stream end in time, and leave nothing",
          "[client][device][chaos]") {
  constexpr int kCalls = 1000;
  Fake(kFrom), Fake(kTo);
  for (const char* transport : {"shm", "tcp"}) {
    INFO(transport);
    memory::FakeStream& stream = NewStream();
    stream.Launch([] {});
    UserTensor user(Shape(64), kFrom);
    std::atomic<int> begun{0};
    test::Inference::Mock mock;
    mock.on_Infer = [&](ServerContext&, const Parcel<test::InferRequest>& request,
                        Parcel<test::InferReply>&) -> Task<absl::Status> {
      ++begun;
      const Placement place = Placement::On(Device::Fake(kTo)).InStream(DeviceStream(&stream));
      auto fetch = request.Fetch(request->input(), place);
      auto got = co_await fetch;
      co_return got.status();
    };
    {
      testing::Loopback loop(mock, ChannelOptions().set_require_transport(transport));
      const test::Inference::Stub stub(loop.channel());
      std::vector<Call<Parcel<test::InferReply>>> calls;
      for (int i = 0; i < kCalls; ++i) {
        Parcel<test::InferRequest> request;
        request.Attach(*request->mutable_input(), user.tensor);
        CallOptions options;
        if (i % 2 == 0) options.set_timeout(absl::Milliseconds(50));
        calls.push_back(stub.Infer(request, options));
      }
      CHECK(Eventually([&] { return begun >= kCalls / 2; }));
      for (size_t i = 1; i < kCalls; i += 2) calls[i].Cancel();
      for (auto& call : calls) CHECK_FALSE(std::move(call).Get().ok());
      // Others come and go meanwhile.
      Giver giver(user.tensor);
      auto other = giver.Get();
      CHECK(other.Fetch(other->output(), Device::Fake(kTo)).Get().ok());
      stream.Finish();
    }
    Live live;
    CHECK(Eventually([&] {
      live = CountLive();
      return live.calls + live.leases + live.fetches == 0;
    }));
    INFO(live.calls << " calls, " << live.leases << " leases, " << live.fetches << " fetches");
  }
}

}  // namespace
}  // namespace verbena
