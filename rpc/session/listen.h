#pragma once
// A listening address: accepts streams and side connections, bounds handshakes and links, and
// matches by token what belongs to one handshake. ServerHandshake (server_handshake.h) is one
// client's.
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "rpc/base/unique_fd.h"
#include "rpc/session/bootstrap.h"
#include "rpc/session/side_socket.h"
#include "rpc/wire/hello.h"

namespace verbena::session {

class ServerHandshake;

// What the engines call in place of the server's sink: forwards, and counts a listener's links.
// Frees itself with the last of them, since links outlive their listener. Those that are proved
// when that is gone are closed, and the server, which may be gone too, does not hear of them.
class CountedSink final : public RequestSink {
 public:
  explicit CountedSink(RequestSink& to) : to_(to) {}
  void* Resolve(absl::string_view path) override { return to_.Resolve(path); }
  uint64_t RequestBytesMax(void* cookie) override { return to_.RequestBytesMax(cookie); }
  ServerCall* OnRequest(Link& link, RequestView& request) override {
    return to_.OnRequest(link, request);
  }
  void OnLinkUp(Link& link) override;
  void OnLinkDown(Link& link, const absl::Status& cause) override;

  // A link that is being made, until it is down or was not proved. Any thread.
  void Add() { links_.fetch_add(1); }
  void Drop();
  uint32_t links() const { return links_.load() - 1; }
  // From now on no link is announced. Any thread.
  void Detach();

 private:
  ~CountedSink() = default;
  RequestSink& to_;
  std::mutex mutex_;
  bool detached_ = false;             // under mutex_
  std::vector<const Link*> unheard_;  // under mutex_: the server does not know them
  std::atomic<uint32_t> links_{1};    // and one for the listener
};

// Watch thread only, but for what says otherwise.
class ListenState : public std::enable_shared_from_this<ListenState> {
 public:
  ListenState(const ListenOptions& options, std::vector<Engine*> engines, RequestSink& sink);
  ~ListenState();
  absl::Status Open();    // any thread, before the rest
  void StartAccepting();  // any thread
  void StopAndDrain();    // any thread but the watch's: no handshake is left when it returns
  const std::string& address() const { return address_; }

  // For handshakes.
  const ListenOptions& options() const { return options_; }
  Engine& NextEngine();
  CountedSink& sink() { return *sink_; }
  // Why another link cannot be; OK = it can. Counts links that are up or being made.
  absl::Status CheckRoom() const;
  // What HELLO_REPLY says of transports and of the side socket.
  void Describe(Engine& engine, wire::Hello& reply) const;
  bool Allowed(absl::string_view transport) const;
  void AddTokens(const wire::Hello& reply, const std::shared_ptr<ServerHandshake>& handshake);
  void RemoveTokens(const wire::Hello& reply);
  void Ended(const std::shared_ptr<ServerHandshake>& handshake);
  // At most one line per second; says how many it left out.
  void LogFailure(const std::string& peer, const absl::Status& why);

 private:
  struct SideArrival;
  using Tokens = std::map<wire::HelloToken, std::weak_ptr<ServerHandshake>>;

  absl::Status OpenStream();
  void OnAccept();
  void OnAcceptAside(int listener);
  void OnSideToken(const std::shared_ptr<SideArrival>& arrival);
  void EndSide(const std::shared_ptr<SideArrival>& arrival);
  void PauseAccepting(bool pause);
  std::shared_ptr<ServerHandshake> TakeToken(Tokens& tokens, const wire::HelloToken& token);
  void StopOnWatch();

  const ListenOptions options_;
  const std::vector<Engine*> engines_;
  CountedSink* const sink_;
  UniqueFd stream_;
  std::string address_;
  std::string unlink_path_;
  SideListener side_;
  std::string side_reason_;  // why there is no side socket
  size_t next_engine_ = 0;
  bool paused_ = false;
  bool stopped_ = false;
  std::set<std::shared_ptr<ServerHandshake>> handshakes_;
  std::set<std::shared_ptr<SideArrival>> arrivals_;
  Tokens side_tokens_;
  int64_t last_log_ns_ = 0;
  uint64_t unlogged_ = 0;

  std::mutex drain_mutex_;
  std::condition_variable drained_;
  bool is_drained_ = false;  // under drain_mutex_
};

}  // namespace verbena::session
