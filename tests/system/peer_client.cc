#include <atomic>
#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "peer.verbena.h"
#include "rpc/base/check.h"
#include "rpc/base/slowdown.h"
#include "rpc/memory/pool.h"
#include "tests/system/peer.h"
#include "tests/system/peer_spread.h"
#include "verbena/verbena.h"

namespace verbena::system_test {
namespace {

struct Tally {
  uint64_t good = 0, bad = 0, untyped = 0;
  absl::Status first;
  void Add(const absl::Status& status) {
    if (status.ok()) {
      ++good;
      return;
    }
    if (bad++ == 0) first = status;
    untyped +=
        status.code() == absl::StatusCode::kUnknown || status.code() == absl::StatusCode::kInternal;
  }
  void Add(const Tally& other) {
    if (bad == 0) first = other.first;
    good += other.good, bad += other.bad, untyped += other.untyped;
  }
  std::string ToString() const {
    return absl::StrCat("good=", good, " bad=", bad, " untyped=", untyped,
                        " first=", absl::StatusCodeToString(first.code()),
                        " message=", first.message());
  }
};

// Calls of one kind, `window` at a time, until it is stopped.
class Load {
 public:
  Load(std::function<void(Tally&)> turn, std::function<void(Tally&)> end)
      : thread_([this, turn = std::move(turn), end = std::move(end)] {
          while (!stop_) turn(tally_);
          end(tally_);
        }) {}
  Tally Stop() {
    stop_ = true;
    thread_.join();
    return tally_;
  }

 private:
  std::atomic<bool> stop_{false};
  Tally tally_;
  std::thread thread_;
};

class Client {
 public:
  Client(const std::string& target, const std::string& transport)
      : target_(target), transport_(transport), channel_(NewChannel()), stub_(channel_) {}

  std::string Do(const std::vector<std::string>& command) {
    const auto number = [&](size_t i) {
      uint64_t value = 0;
      if (command.size() > i) VERBENA_CHECK(absl::SimpleAtoi(command[i], &value), command[i]);
      return value;
    };
    if (command[0] == "ready") return Ready();
    if (command[0] == "echo") return Echo(number(1));
    if (command[0] == "give") return Give(number(1));
    if (command[0] == "fetch") return Fetch(number(1));
    if (command[0] == "take") return Take(number(1), number(2));
    if (command[0] == "connect") return Connect(number(1));
    if (command[0] == "spread") {
      spread_ = std::make_unique<Spread>(channels_);
      return "started";
    }
    if (command[0] == "gather") return std::exchange(spread_, nullptr)->Stop();
    if (command[0] == "start")
      return Start(command[1], std::max<uint64_t>(number(2), 1), number(3));
    if (command[0] == "stop") return Stop();
    VERBENA_CHECK(false, "unknown command ", command[0]);
    return "";
  }

 private:
  std::shared_ptr<Channel> NewChannel() {
    ChannelOptions options;
    if (transport_ != "any") options.set_require_transport(transport_);
    options.set_backoff(absl::Milliseconds(10), absl::Milliseconds(100));
    return Channel::Create(target_, options);
  }

  std::string Ready() {
    const absl::Status status = channel_->WaitUntilReady(absl::Seconds(10) * kSlowdown);
    const ChannelStatus now = channel_->status();
    return absl::StrCat("code=", absl::StatusCodeToString(status.code()),
                        " transport=", now.transport, " why=", now.why);
  }
  std::string Echo(uint64_t count) {
    Tally tally;
    test::EchoRequest request;
    request.set_data("thirty-two bytes of a small call.");
    for (uint64_t i = 0; i < count; ++i) {
      tally.Add(stub_.Echo(request, CallOptions().set_timeout(absl::Seconds(10) * kSlowdown))
                    .Get()
                    .status());
    }
    return tally.ToString();
  }
  // Holds what it gets.
  std::string Give(uint64_t bytes) {
    test::GiveRequest request;
    request.set_bytes(bytes);
    absl::StatusOr<Parcel<test::GiveReply>> reply = stub_.Give(request).Get();
    Tally tally;
    tally.Add(reply.status());
    if (reply.ok()) held_.push_back(*std::move(reply));
    return tally.ToString();
  }
  // Says when it begins to fetch, and how and when that ended.
  std::string Fetch(uint64_t bytes) {
    test::GiveRequest request;
    request.set_bytes(bytes);
    absl::StatusOr<Parcel<test::GiveReply>> reply = stub_.Give(request).Get();
    VERBENA_CHECK(reply.ok(), reply.status().ToString());
    const uint64_t slabs = memory::PoolHere().stats().slabs_made;
    Call<Buffer> fetch = reply->Fetch((*reply)->payload());
    Answer("fetching");
    const absl::Status status = fetch.Get().status();
    return absl::StrCat("code=", absl::StatusCodeToString(status.code()),
                        " ended_us=", absl::ToUnixMicros(absl::Now()),
                        " grown=", memory::PoolHere().stats().slabs_made - slabs,
                        " message=", status.message());
  }
  // `count` requests at a time, each with a payload of so many bytes.
  std::string Take(uint64_t bytes, uint64_t count) {
    Tally tally;
    std::vector<Call<test::TakeReply>> calls;
    for (uint64_t i = 0; i < count; ++i) calls.push_back(StartTake(bytes, 1));
    for (auto& call : calls) tally.Add(call.Get().status());
    return tally.ToString();
  }
  // More channels, which stay.
  std::string Connect(uint64_t count) {
    Tally tally;
    for (uint64_t i = 0; i < count; ++i) {
      channels_.push_back(NewChannel());
      tally.Add(channels_.back()->WaitUntilReady(absl::Seconds(20) * kSlowdown));
    }
    return tally.ToString();
  }

  Call<test::TakeReply> StartTake(uint64_t bytes, uint32_t times) {
    if (payload_.bytes() != bytes) {
      absl::StatusOr<Buffer> made = Buffer::Allocate(bytes);
      VERBENA_CHECK(made.ok(), made.status().ToString());
      payload_ = *std::move(made);
    }
    Parcel<test::TakeRequest> request;
    request->set_times(times);
    request.Attach(*request->mutable_payload(), payload_);
    return stub_.Take(request);
  }

  template <class Reply>
  std::unique_ptr<Load> Loop(uint64_t window, std::function<Call<Reply>()> start) {
    auto calls = std::make_shared<std::vector<Call<Reply>>>();
    auto next = std::make_shared<size_t>(0);
    return std::make_unique<Load>(
        [=](Tally& tally) {
          if (calls->size() < window) return calls->push_back(start());
          Call<Reply>& call = (*calls)[(*next)++ % window];
          const absl::Status status = call.Get().status();
          tally.Add(status);
          if (!status.ok()) absl::SleepFor(absl::Milliseconds(1));
          call = start();
        },
        [=](Tally& tally) {
          for (Call<Reply>& call : *calls) tally.Add(call.Get().status());
        });
  }

  std::string Start(const std::string& kind, uint64_t window, uint64_t bytes) {
    if (kind == "echo" || kind == "patient") {
      test::EchoRequest request;
      request.set_data("thirty-two bytes of a small call.");
      request.set_reply_bytes(static_cast<uint32_t>(bytes));
      const bool patient = kind == "patient";
      load_ = Loop<test::EchoReply>(window, [this, request, patient] {
        return stub_.Echo(
            request,
            CallOptions().set_timeout(absl::Seconds(20) * kSlowdown).set_wait_for_ready(patient));
      });
    } else if (kind == "hold") {
      load_ = Loop<test::HoldReply>(window, [this] { return stub_.Hold({}); });
    } else if (kind == "take") {
      load_ = Loop<test::TakeReply>(window, [this, bytes] { return StartTake(bytes, 1); });
    } else if (kind == "give") {
      load_ = std::make_unique<Load>([this, bytes](Tally& tally) { FetchGiven(bytes, tally); },
                                     [](Tally&) {});
    } else if (kind == "pull") {
      load_ = KeepPulling(window, bytes);
    } else if (kind == "connect") {
      load_ = std::make_unique<Load>(
          [this, window](Tally& tally) {
            std::vector<std::shared_ptr<Channel>> channels;
            for (uint64_t i = 0; i < window; ++i) channels.push_back(NewChannel());
            for (auto& channel : channels) test::Peer::Stub(channel).Echo({}).Detach();
            tally.Add(channels.back()->WaitUntilReady(absl::Seconds(10) * kSlowdown));
          },
          [](Tally&) {});
    } else {
      VERBENA_CHECK(false, "unknown kind ", kind);
    }
    return "started";
  }
  // `window` payloads are being fetched at any time.
  std::unique_ptr<Load> KeepPulling(uint64_t window, uint64_t bytes) {
    struct Pulled {
      Parcel<test::GiveReply> reply;
      Call<Buffer> fetch;
    };
    auto pulled = std::make_shared<std::deque<Pulled>>();
    const auto end_first = [pulled](Tally& tally) {
      tally.Add(pulled->front().fetch.Get().status());
      pulled->pop_front();
    };
    return std::make_unique<Load>(
        [=, this](Tally& tally) {
          if (pulled->size() == window) end_first(tally);
          test::GiveRequest request;
          request.set_bytes(bytes);
          absl::StatusOr<Parcel<test::GiveReply>> reply = stub_.Give(request).Get();
          if (!reply.ok()) return tally.Add(reply.status());
          Call<Buffer> fetch = reply->Fetch((*reply)->payload());
          pulled->push_back({*std::move(reply), std::move(fetch)});
        },
        [=](Tally& tally) {
          while (!pulled->empty()) end_first(tally);
        });
  }
  void FetchGiven(uint64_t bytes, Tally& tally) {
    test::GiveRequest request;
    request.set_bytes(bytes);
    absl::StatusOr<Parcel<test::GiveReply>> reply = stub_.Give(request).Get();
    if (!reply.ok()) return tally.Add(reply.status());
    tally.Add(reply->Fetch((*reply)->payload()).Get().status());
  }
  std::string Stop() {
    const Tally tally = load_->Stop();
    load_.reset();
    return tally.ToString();
  }

  const std::string target_;
  const std::string transport_;
  std::shared_ptr<Channel> channel_;
  test::Peer::Stub stub_;
  Buffer payload_;
  std::vector<Parcel<test::GiveReply>> held_;
  std::vector<std::shared_ptr<Channel>> channels_;
  std::unique_ptr<Load> load_;
  std::unique_ptr<Spread> spread_;
};

}  // namespace

int RunClient(const std::vector<std::string>& arguments) {
  Client client(arguments[1], arguments[2]);
  for (auto command = NextCommand(); !command.empty(); command = NextCommand()) {
    if (command[0] == "fork") {
      ForkChild();
    } else {
      Answer(client.Do(command));
    }
  }
  return 0;
}

}  // namespace verbena::system_test
