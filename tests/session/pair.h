#pragma once
// Two engines that talk over a simulated network, on one virtual clock, driven by hand.
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "rpc/fabric/sim/network.h"
#include "rpc/reactor/reactor.h"
#include "rpc/session/engine.h"
#include "rpc/session/session.h"

namespace verbena::session::testing {

inline std::string Text(absl::Span<const std::byte> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}
inline absl::Span<const std::byte> Bytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// A call that remembers what came.
class TestCall final : public ClientCall {
 public:
  explicit TestCall(absl::string_view path) { method = MethodId(path); }
  void OnReply(ReplyView& reply) override;
  bool done() const { return replies != 0; }

  int replies = 0;
  absl::Status status;
  std::string body;
  bool body_was_read = false;
  PayloadSetRef payloads;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::function<void()> then;
};

class TestFetch : public Fetch {
 public:
  void OnDone(const absl::Status& result) override {
    ++times;
    status = result;
  }
  bool done() const { return times != 0; }
  int times = 0;
  absl::Status status = absl::UnknownError("not done");
};

class TestSink;

class TestServed final : public ServerCall {
 public:
  void OnCancel(const absl::Status& why, bool gone) override {
    ++cancels;
    cancel_status = why;
    peer_gone = gone;
  }
  void OnReplyLeasesEnded() override { ++ended; }

  Link* link = nullptr;
  std::string method, body;
  bool body_was_read = false;
  int64_t deadline_ns = 0;
  PayloadSetRef payloads;
  std::vector<std::pair<std::string, std::string>> metadata;
  int cancels = 0;
  int ended = 0;
  bool peer_gone = false;
  absl::Status cancel_status;
};

// Serves "/test/Echo" at once with the request's body; "/test/Hold" is kept for the test to answer.
class TestSink final : public RequestSink {
 public:
  void* Resolve(absl::string_view path) override;
  uint64_t RequestBytesMax(void*) override { return request_bytes_max; }
  ServerCall* OnRequest(Link& link, RequestView& request) override;
  void OnLinkUp(Link& up) override { link = &up; }
  void OnLinkDown(Link&, const absl::Status& why) override {
    ++downs;
    cause = why;
    link = nullptr;
  }

  Link* link = nullptr;
  int downs = 0;
  absl::Status cause;
  uint64_t request_bytes_max = 0;
  std::deque<TestServed> served;  // never moves one
  uint64_t requests = 0;
};

class TestOwner final : public LinkOwner {
 public:
  void OnLinkUp(Link& up) override { link = &up; }
  void OnLinkDown(Link*, const absl::Status& why) override {
    ++downs;
    cause = why;
    link = nullptr;
  }
  void OnGoAway(Link&) override { ++go_aways; }

  Link* link = nullptr;
  int downs = 0;
  int go_aways = 0;
  absl::Status cause;
};

class Pair {
 public:
  explicit Pair(const fabric::sim::NetworkOptions& network = {}, const EngineOptions& options = {},
                uint32_t open_calls_max = 0);
  ~Pair();

  // Joins a new link; runs until it is proved or not. `of_server`: for the server's end, in place
  // of `sink`.
  absl::Status Connect(RequestSink* of_server = nullptr);
  // Ticks both until `done` or `ticks` ran out; returns done().
  bool Run(const std::function<bool()>& done, int ticks = 20'000);
  void RunFor(int64_t ns);
  void Tick();
  // Runs `f` in the seat of that side's reactor.
  void OnClient(const std::function<void()>& f) { InSeat(*client_reactor, f); }
  void OnServer(const std::function<void()>& f) { InSeat(*server_reactor, f); }
  static void InSeat(reactor::Reactor& reactor, const std::function<void()>& f);
  // Payload memory of the pools.
  static memory::Block Pattern(size_t bytes, uint64_t seed);

  fabric::sim::Network network;
  std::unique_ptr<reactor::Reactor> client_reactor, server_reactor;
  std::unique_ptr<Engine> client, server;
  fabric::Fabric* client_fabric = nullptr;
  fabric::Fabric* server_fabric = nullptr;
  TestOwner owner;
  TestSink sink;
  absl::StatusOr<Link*> client_link = absl::UnknownError("not yet");
  absl::StatusOr<Link*> server_link = absl::UnknownError("not yet");
  LinkId client_id = LinkId::kNone;
  LinkId server_id = LinkId::kNone;

 private:
  uint32_t open_calls_max_;
};

}  // namespace verbena::session::testing
