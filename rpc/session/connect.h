#pragma once
// One attempt to make a link, the client's side of the handshake. Connect() in bootstrap.h starts
// it.
//
//   resolve -> connect -> HELLO, HELLO_REPLY -> per transport: Prepare [S], (side socket), OPEN,
//   OPEN_REPLY, Complete [S], Adopt (in the seat) -> proved
//
// A transport that fails before Adopt is followed by the next on the same connection. One that
// fails in Adopt has used the connection up: the attempt connects again with the transports that
// are left.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rpc/base/unique_fd.h"
#include "rpc/session/address.h"
#include "rpc/session/bootstrap.h"
#include "rpc/session/hello_socket.h"
#include "rpc/wire/hello.h"

namespace verbena::session {

// Watch thread only, after Start.
class ClientAttempt : public std::enable_shared_from_this<ClientAttempt> {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<Link*>) &&>;
  ClientAttempt(Engine& engine, const ConnectOptions& options, LinkOwner& owner, Done done);
  void Start();  // any thread

 private:
  // The transport being opened.
  struct Opening {
    fabric::Fabric* fabric = nullptr;
    LinkId id = LinkId::kNone;  // reserved
    bool prepared = false;
    fabric::Offer offer;
    UniqueFd side, peer_pidfd;
    uint32_t peer_segment_bytes = 0;
  };

  void Begin();
  absl::Status ChooseCandidates();
  void OnResolved(absl::StatusOr<std::vector<SocketAddress>> addresses);
  void ConnectNext();
  void OnConnected(UniqueFd stream);
  void OnMessage(wire::HelloType type, const std::string& body);
  void OnHelloReply(const std::string& body);
  void OpenNext();
  void OnPrepared(absl::StatusOr<fabric::Offer> offer);
  absl::Status PassDescriptors();
  void SendOpen();
  void OnOpenReply(const std::string& body);
  void Complete(const wire::OpenMessage& reply, std::vector<int> fds);
  void Adopt(const fabric::Sockets& sockets);
  void NotProved(const absl::Status& why);
  // Gives the transport up, then tries the next.
  void TransportFailed(const absl::Status& why);
  void NoteReason(const absl::Status& why);
  void NoneWorks();

  // Ends the attempt once no job is under way.
  void Fail(absl::Status why);
  void Conclude();
  // Runs `job` on the setup thread, then `then` here unless the attempt has failed meanwhile.
  template <class Result>
  void OnSetup(absl::AnyInvocable<Result() &&> job, absl::AnyInvocable<void(Result) &&> then);
  void AwaitWritable(UniqueFd fd, absl::AnyInvocable<void(UniqueFd, absl::Status) &&> then);
  void StopAwaiting();

  Engine& engine_;
  const ConnectOptions options_;
  LinkOwner& owner_;
  Done done_;
  const char* stage_ = "resolving";
  std::optional<absl::Status> failure_;
  bool busy_ = false;  // a job is under way whose end this waits for
  bool concluded_ = false;

  ParsedAddress parsed_;
  std::vector<SocketAddress> addresses_;
  size_t next_address_ = 0;
  SocketAddress connected_to_;
  std::string connect_errors_;
  UniqueFd awaited_;  // connecting
  std::unique_ptr<HelloSocket> socket_;
  std::vector<std::string> candidates_;  // still to try, best first
  std::string why_;                      // why not those that were tried
  bool may_work_later_ = false;          // one of them, as far as can be told
  bool exhausted_ = false;               // one of them has its maximum of links, here or there
  bool asked_for_memory_ = false;
  wire::Hello server_;
  Opening opening_;
};

}  // namespace verbena::session
