// kill -9 of one side, as the other sees it: all that depends on the dead ends with UNAVAILABLE
// within the bound, and nothing else notices.
#include <atomic>
#include <memory>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "peer.verbena.h"
#include "tests/catch.h"
#include "tests/system/process.h"
#include "tests/time_bounds.h"
#include "tests/transports.h"
#include "verbena/verbena.h"

namespace verbena::system_test {
namespace {

using test_bounds::BestMs;
using test_bounds::kDeathMs;

std::shared_ptr<Channel> ChannelTo(const ServerPeer& server, const std::string& transport) {
  return Channel::Create(server.address(),
                         ChannelOptions().set_require_transport(transport).set_backoff(
                             absl::Milliseconds(10), absl::Milliseconds(50)));
}

constexpr int kFetches = 4;

double MsSince(absl::Time then) { return absl::ToDoubleMilliseconds(absl::Now() - then); }

// Ends of calls, counted for each.
struct Ends {
  explicit Ends(size_t count) : of(count) {}
  std::vector<std::atomic<int>> of;
  std::atomic<size_t> ended{0}, unavailable{0};
};

// From the kill to the last end of `count` calls on one channel.
double KillUnderCalls(const std::string& transport, size_t count) {
  ServerPeer server;
  test::Peer::Stub stub(ChannelTo(server, transport));
  auto ends = std::make_shared<Ends>(count);
  for (size_t i = 0; i < count; ++i) {
    stub.Hold({}).Then([ends, i](absl::StatusOr<test::HoldReply> reply) {
      ends->unavailable += absl::IsUnavailable(reply.status());
      ++ends->of[i];
      ++ends->ended;
    });
  }
  const bool served = Within(absl::Seconds(10), [&] { return server.state().calls == count; });
  INFO(server.state().calls << " calls of " << count << " are served, " << ends->ended
                            << " have ended, " << ends->unavailable << " with UNAVAILABLE");
  REQUIRE(served);
  const absl::Time killed = absl::Now();
  server.KillSoon();
  // Expect: every call ends, none twice.
  REQUIRE(Within(absl::Seconds(10), [&] { return ends->ended == count; }));
  const double took_ms = MsSince(killed);
  REQUIRE(ends->unavailable == count);
  absl::SleepFor(absl::Milliseconds(20));
  for (const std::atomic<int>& times : ends->of) REQUIRE(times == 1);
  return took_ms;
}

TEST_CASE("kill -9 of a server ends each of its calls once, at once, with UNAVAILABLE",
          "[system]") {
  for (const std::string& transport : TestTransports()) {
    for (const size_t count : {1, 100, 1000}) {
      const std::string what = absl::StrCat("kill -9 under ", count, " calls, ", transport);
      const double best_ms =
          BestMs(what.c_str(), kDeathMs, [&] { return KillUnderCalls(transport, count); });
      CHECK(best_ms <= kDeathMs * kSlowdown);
    }
  }
}

// Calls that go on while it lives, each of them good.
class Unconcerned {
 public:
  Unconcerned(const ServerPeer& server, const std::string& transport)
      : stub_(ChannelTo(server, transport)) {
    thread_ = std::thread([this] {
      while (!stop_) (stub_.Echo({}).Get().ok() ? good_ : bad_) += 1;
    });
  }
  ~Unconcerned() {
    stop_ = true;
    thread_.join();
  }
  void Expect() {
    const int before = good_;
    CHECK(Within(absl::Seconds(5), [&] { return good_ >= before + 10; }));
    CHECK(bad_ == 0);
  }

 private:
  test::Peer::Stub stub_;
  std::atomic<bool> stop_{false};
  std::atomic<int> good_{0}, bad_{0};
  std::thread thread_;
};

TEST_CASE("the death of one server is not noticed by calls to another", "[system]") {
  for (const std::string& transport : TestTransports()) {
    ServerPeer other;
    Unconcerned unconcerned(other, transport);
    unconcerned.Expect();
    const std::string what = absl::StrCat("kill -9 beside another server, ", transport);
    const double best_ms = BestMs(what.c_str(), kDeathMs, [&] {
      const double took_ms = KillUnderCalls(transport, 1000);
      unconcerned.Expect();
      return took_ms;
    });
    CHECK(best_ms <= kDeathMs * kSlowdown);
  }
}

// From the kill of a server to the last end of the fetches from it. Its successor on the same
// address is found by the old channel. `interrupted`: fetches that the kill ended.
double KillUnderReads(const std::string& transport, int& interrupted) {
  auto server = std::make_unique<ServerPeer>();
  const std::string address = server->address();
  const std::shared_ptr<Channel> channel = ChannelTo(*server, transport);
  test::Peer::Stub stub(channel);
  test::GiveRequest request;
  request.set_bytes(64 << 20);
  absl::StatusOr<Parcel<test::GiveReply>> reply = stub.Give(request).Get();
  REQUIRE(reply.ok());
  {
    // Memory for them is there: what follows are READs alone.
    std::vector<absl::StatusOr<Buffer>> before;
    for (int i = 0; i < kFetches; ++i) {
      before.push_back(reply->Fetch((*reply)->payload()).Get());
      REQUIRE(before.back().ok());
    }
  }
  std::vector<Call<Buffer>> fetches;
  for (int i = 0; i < kFetches; ++i) fetches.push_back(reply->Fetch((*reply)->payload()));
  absl::SleepFor(absl::Milliseconds(2));
  const absl::Time killed = absl::Now();
  server->KillSoon();
  // Expect: each fetch ends; one that was done already is good, the others say why.
  for (Call<Buffer>& fetch : fetches) {
    const absl::Status status = fetch.Get().status();
    CHECK((status.ok() || absl::IsUnavailable(status)));
    interrupted += absl::IsUnavailable(status);
  }
  const double took_ms = MsSince(killed);
  server->Kill();
  CHECK(absl::IsUnavailable(reply->Fetch((*reply)->payload()).Get().status()));
  ServerPeer successor(address);
  REQUIRE(Within(absl::Seconds(5), [&] { return stub.Echo({}).Get().ok(); }));
  CHECK(channel->status().transport == transport);
  return took_ms;
}

TEST_CASE("kill -9 of a server under READs ends them, and its successor is found", "[system]") {
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    const std::string what = absl::StrCat("kill -9 under READs, ", transport);
    const double best_ms = BestMs(what.c_str(), kDeathMs, [&] {
      // READs may all be over before a busy machine gets to the kill; then it is of no use.
      int interrupted = 0;
      double took_ms = 0;
      for (int i = 0; i < 10 && interrupted == 0; ++i) {
        took_ms = KillUnderReads(transport, interrupted);
      }
      REQUIRE(interrupted > 0);
      return took_ms;
    });
    CHECK(best_ms <= kDeathMs * kSlowdown);
  }
}

// Larger than a pool can have made within the time that the tests below leave it.
constexpr uint64_t kFreshBytes = uint64_t{1} << 30;

int64_t Number(const std::map<std::string, std::string>& fields, const char* name) {
  int64_t value = -1;
  const auto found = fields.find(name);
  REQUIRE(found != fields.end());
  REQUIRE(absl::SimpleAtoi(found->second, &value));
  return value;
}

TEST_CASE("kill -9 of the owner while the reader still makes memory for its READ", "[system]") {
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    const double best_ms =
        BestMs(absl::StrCat("kill -9 of an owner, 1 GiB not there yet, ", transport).c_str(),
               kDeathMs, [&] {
                 ServerPeer server;
                 ClientPeer reader(server.address(), transport);  // a pool with nothing in it
                 reader.Send(absl::StrCat("fetch ", kFreshBytes));
                 REQUIRE(reader.Read(absl::Seconds(60)) == "fetching");
                 absl::SleepFor(absl::Milliseconds(20));
                 const int64_t killed_us = absl::ToUnixMicros(absl::Now());
                 server.Kill();
                 const auto end = Fields(reader.Read(absl::Seconds(60)));
                 CHECK(end.at("code") == "UNAVAILABLE");
                 CHECK(end.at("grown") == "0");  // else there was nothing to wait for
                 return static_cast<double>(Number(end, "ended_us") - killed_us) / 1e3;
               });
    CHECK(best_ms <= kDeathMs * kSlowdown);
  }
}

TEST_CASE("kill -9 of a client while its server still makes memory to READ it", "[system]") {
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    const double best_ms =
        BestMs(absl::StrCat("kill -9 of a client, 1 GiB not there yet, ", transport).c_str(),
               kDeathMs, [&] {
                 ServerPeer server;
                 const uint64_t used = server.state().used_bytes;
                 ClientPeer client(server.address(), transport);
                 client.Ask(absl::StrCat("start take 1 ", kFreshBytes), absl::Seconds(60));
                 REQUIRE(Within(absl::Seconds(60), [&] { return server.state().fetches > 0; }));
                 CHECK(server.state().used_bytes < used + kFreshBytes);
                 const absl::Time killed = absl::Now();
                 client.KillSoon();
                 REQUIRE(Within(absl::Seconds(20), [&] {
                   const ServerPeer::State now = server.state();
                   return now.fetches + now.calls + now.links == 0;
                 }));
                 const double took_ms = MsSince(killed);
                 // What it made is there for others.
                 CHECK(Within(absl::Seconds(20),
                              [&] { return server.state().used_bytes < used + (1 << 20); }));
                 return took_ms;
               });
    CHECK(best_ms <= kDeathMs * kSlowdown);
  }
}

}  // namespace
}  // namespace verbena::system_test
