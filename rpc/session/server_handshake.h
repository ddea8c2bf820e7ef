#pragma once
// One client's handshake, the server's side; see connect.h for the exchange.
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rpc/base/unique_fd.h"
#include "rpc/session/hello_socket.h"
#include "rpc/session/listen.h"
#include "rpc/wire/hello.h"

namespace verbena::session {

// Watch thread only.
class ServerHandshake : public std::enable_shared_from_this<ServerHandshake> {
 public:
  ServerHandshake(std::shared_ptr<ListenState> listener, std::string peer)
      : listener_(std::move(listener)), peer_(std::move(peer)) {}
  void Start(UniqueFd stream);
  // Ends it once no job is under way; ListenState::Ended follows.
  void Close();
  // What came in by the side socket for this handshake.
  void AttachSide(UniqueFd side);
  const std::string& peer() const { return peer_; }

 private:
  enum class Stage { kHello, kOpen, kAttach, kSetup, kAdopting, kRefused };
  struct Opened;

  void Watch(UniqueFd stream);
  void OnMessage(wire::HelloType type, const std::string& body);
  void OnEnd(const absl::Status& why);
  void OnHello(const std::string& body);
  void OnGreeting(const std::string& greeting);
  void OnOpen(const std::string& body);
  void MaybeSetUp();
  void OnOpened(Opened result);
  void ReplyTransportFailed(const absl::Status& why);
  void Adopt(Opened& result);
  // Says why, then closes.
  void Refuse(const absl::Status& why);
  void FailSilently(const absl::Status& why);

  const std::shared_ptr<ListenState> listener_;
  const std::string peer_;
  Stage stage_ = Stage::kHello;
  std::atomic<bool> ended_{false};  // written on the watch's thread
  Engine* engine_ = nullptr;
  std::unique_ptr<HelloSocket> socket_;
  wire::Hello client_;
  wire::Hello reply_;
  bool has_tokens_ = false;
  bool asked_for_memory_ = false;
  UniqueFd side_, peer_pidfd_;
  wire::OpenMessage open_;
  fabric::Fabric* fabric_ = nullptr;
};

}  // namespace verbena::session
