#include "rpc/session/server_handshake.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "rpc/base/limits.h"
#include "rpc/fabric/available.h"
#include "rpc/reactor/service_threads.h"
#include "rpc/session/growing.h"
#include "rpc/session/link_terms.h"
#include "rpc/session/random.h"
#include "rpc/session/seat_job.h"
#include "rpc/session/side_socket.h"
#include "rpc/wire/control.h"

namespace verbena::session {
namespace {

// How long a refused peer may take to read why, before its connection is closed under it.
constexpr absl::Duration kLinger = absl::Milliseconds(200);
// A fatal TLS alert, handshake_failure: what a TLS client understands.
constexpr char kTlsAlert[] = {0x15, 0x03, 0x01, 0x00, 0x02, 0x02, 0x28};

// Closing with unread bytes would make the kernel reset the connection and drop what was sent.
void CloseLater(UniqueFd stream) {
  ::shutdown(stream.get(), SHUT_WR);
  reactor::Watch::Get().PostAfter(kLinger, [stream = std::move(stream)] {});
}

}  // namespace

// What the setup thread made of an OPEN.
struct ServerHandshake::Opened {
  absl::Status status;
  LinkId id = LinkId::kNone;
  fabric::Sockets sockets;
  int stream = -1;  // also when the fabric has taken it: OPEN_REPLY goes there
  std::string blob;
  uint32_t descriptors = 0;
};

void ServerHandshake::Start(UniqueFd stream) {
  Watch(std::move(stream));
  socket_->ReadNext();
  reactor::Watch::Get().PostAfter(
      listener_->options().handshake_timeout, [weak = weak_from_this()] {
        const auto self = weak.lock();
        if (self == nullptr || self->ended_ || self->stage_ == Stage::kAdopting) return;
        self->FailSilently(absl::DeadlineExceededError(absl::StrCat(
            "not done after ", absl::FormatDuration(self->listener_->options().handshake_timeout),
            self->stage_ == Stage::kHello ? ", no HELLO came" : "")));
      });
}

void ServerHandshake::Watch(UniqueFd stream) {
  const auto self = shared_from_this();
  HelloSocket::Events events;
  events.on_message = [self](wire::HelloType type, std::string body) {
    const auto keep = self;
    keep->OnMessage(type, body);
  };
  events.on_greeting = [self](std::string greeting) {
    const auto keep = self;
    keep->OnGreeting(greeting);
  };
  events.on_end = [self](absl::Status why) {
    const auto keep = self;
    keep->OnEnd(why);
  };
  socket_ = std::make_unique<HelloSocket>(std::move(stream), std::move(events));
}

void ServerHandshake::OnMessage(wire::HelloType type, const std::string& body) {
  if (stage_ == Stage::kHello && type == wire::HelloType::kHello) return OnHello(body);
  if (stage_ == Stage::kOpen && type == wire::HelloType::kOpen) return OnOpen(body);
  Refuse(absl::InvalidArgumentError(absl::StrCat("bad handshake: ", wire::HelloTypeName(type),
                                                 " came, expected ",
                                                 stage_ == Stage::kHello ? "HELLO" : "OPEN")));
}

void ServerHandshake::OnEnd(const absl::Status& why) {
  if (why.code() == absl::StatusCode::kNotFound)
    return Close();  // a port scan, a health check: no event
  if (why.code() == absl::StatusCode::kUnauthenticated) {
    UniqueFd stream = socket_->Take();
    (void)!::send(stream.get(), kTlsAlert, sizeof(kTlsAlert), MSG_NOSIGNAL | MSG_DONTWAIT);
    CloseLater(std::move(stream));
  }
  if (why.code() == absl::StatusCode::kInvalidArgument) return Refuse(why);
  FailSilently(why);
}

void ServerHandshake::OnHello(const std::string& body) {
  absl::StatusOr<wire::Hello> hello = wire::DecodeHello(body);
  absl::Status status = hello.ok() ? CheckTerms(*hello) : hello.status();
  if (status.ok() && (hello->version_oldest > wire::kProtocolVersion ||
                      hello->version < wire::kProtocolVersionOldest)) {
    status = VersionMismatch(*hello);
  }
  if (status.ok()) status = listener_->CheckRoom();
  if (!status.ok()) return Refuse(status);
  client_ = *std::move(hello);
  engine_ = &listener_->NextEngine();
  reply_.version = std::min(client_.version, wire::kProtocolVersion);
  reply_.incarnation = ProcessIncarnation();
  reply_.open_calls_max = limits::kOpenCallsMax;
  reply_.side_token = RandomToken();
  listener_->Describe(*engine_, reply_);
  listener_->AddTokens(reply_, shared_from_this());
  has_tokens_ = true;
  stage_ = Stage::kOpen;
  socket_->Send(wire::EncodeHello(wire::HelloType::kHelloReply, reply_));
  socket_->ReadNext();
}

// A connection that a fabric's peer makes to this address besides.
void ServerHandshake::OnGreeting(const std::string& greeting) {
  const auto self = shared_from_this();
  if (!fabric::TakeGreeted(greeting, socket_->Take().Release())) {
    listener_->LogFailure(
        peer_, absl::PermissionDeniedError(absl::StrCat("no bulk lane waits for the greeting ",
                                                        absl::BytesToHexString(greeting),
                                                        ", or one came with it before")));
  }
  Close();
}

void ServerHandshake::OnOpen(const std::string& body) {
  absl::StatusOr<wire::OpenMessage> open = wire::DecodeOpen(body);
  if (!open.ok()) return Refuse(open.status());
  open_ = *std::move(open);
  fabric_ = listener_->Allowed(open_.transport) ? engine_->FindFabric(open_.transport) : nullptr;
  if (fabric_ == nullptr) {
    return ReplyTransportFailed(
        absl::FailedPreconditionError(absl::StrCat("\"", open_.transport, "\" is not offered")));
  }
  if (const absl::Status status = CheckSegment(open_); !status.ok())
    return ReplyTransportFailed(status);
  stage_ = Stage::kAttach;
  MaybeSetUp();
}

void ServerHandshake::AttachSide(UniqueFd side) {
  if (ended_) return;
  side_ = std::move(side);
  peer_pidfd_ = PeerPidfd(side_.get());
  MaybeSetUp();
}

// Once everything that belongs to the OPEN is there; what never comes ends with the handshake's
// deadline.
void ServerHandshake::MaybeSetUp() {
  if (stage_ != Stage::kAttach) return;
  if (open_.descriptors > 0 && !side_) return;
  if (!asked_for_memory_ && !HasRoom(wire::kPatternBytes, [self = shared_from_this()] {
        if (!self->ended_) self->MaybeSetUp();
      })) {
    asked_for_memory_ = true;
    return;
  }
  std::vector<int> fds;
  if (open_.descriptors > 0) {
    absl::StatusOr<std::vector<int>> received = ReceiveDescriptors(side_.get(), open_.descriptors);
    if (!received.ok()) return Refuse(received.status());
    fds = *std::move(received);
  }
  absl::Status room = listener_->CheckRoom();
  const absl::StatusOr<LinkId> id =
      room.ok() ? engine_->ReserveLink() : absl::StatusOr<LinkId>(room);
  if (!id.ok()) {
    CloseDescriptors(fds);
    return Refuse(id.status());
  }
  stage_ = Stage::kSetup;
  listener_->sink().Add();
  Opened job;
  job.id = *id;
  job.stream = socket_->Take().Release();
  socket_.reset();
  job.sockets = {job.stream, side_.Release()};
  reactor::PostSetup([self = shared_from_this(), fabric = fabric_, job, blob = open_.blob,
                      fds = std::move(fds)]() mutable {
    // It may have waited for long: some peers' addresses take a device a second.
    absl::StatusOr<fabric::Offer> offer =
        self->ended_ ? absl::CancelledError("the handshake has ended")
                     : fabric->Prepare(job.id, fabric::Side::kServer, blob);
    job.status = offer.status();
    if (offer.ok()) {
      job.blob = std::move(offer->blob);
      job.descriptors = static_cast<uint32_t>(offer->fds.size());
      if (!offer->fds.empty()) job.status = SendDescriptors(job.sockets.side, offer->fds);
      CloseDescriptors(offer->fds);
      if (!job.status.ok()) fabric->Abandon(job.id);
    }
    if (job.status.ok()) {
      job.status =
          fabric->Complete(job.id, fabric::Offer{std::move(blob), std::move(fds)}, job.sockets);
    } else {
      CloseDescriptors(fds);
    }
    // The handshake may have ended meanwhile; then nobody will start the link.
    reactor::Watch::Get().Post(
        [self, job = std::move(job)]() mutable { self->OnOpened(std::move(job)); });
  });
}

void ServerHandshake::OnOpened(Opened result) {
  UniqueFd(std::exchange(result.sockets.side, -1)).Reset();
  bool sent = false;
  if (result.status.ok() && !ended_) {
    wire::OpenMessage reply;
    reply.transport = open_.transport;
    reply.segment_bytes = fabric_->traits().segment_bytes;
    reply.descriptors = result.descriptors;
    reply.blob = result.blob;
    const std::string text = wire::EncodeOpen(wire::HelloType::kOpenReply, reply);
    // Far below what a fresh socket takes; the fabric writes nothing before the client's first
    // frame.
    sent = ::send(result.stream, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
           static_cast<ssize_t>(text.size());
  }
  if (sent) return Adopt(result);
  // Nothing is left of a transport that failed; one that stands is abandoned.
  UniqueFd stream(std::exchange(result.sockets.stream, -1));
  reactor::PostSetup([self = shared_from_this(), fabric = fabric_, result,
                      stream = std::move(stream)]() mutable {
    GiveUp(*self->engine_, fabric, result.id, result.status.ok())();
    self->listener_->sink().Drop();
    reactor::Watch::Get().Post([self, result, stream = std::move(stream)]() mutable {
      self->stage_ = Stage::kOpen;
      if (self->ended_) {
        stream.Reset();
        return self->listener_->Ended(self);
      }
      if (result.status.ok() || !stream) {
        return self->FailSilently(absl::UnavailableError(
            result.status.ok() ? "the peer does not take OPEN_REPLY" : result.status.message()));
      }
      self->Watch(std::move(stream));
      self->ReplyTransportFailed(result.status);
    });
  });
}

void ServerHandshake::ReplyTransportFailed(const absl::Status& why) {
  listener_->LogFailure(peer_, absl::UnavailableError(NamedOnce(open_.transport, why.message())));
  wire::OpenMessage reply;
  reply.transport = open_.transport;
  reply.status = why;
  stage_ = Stage::kOpen;
  socket_->Send(wire::EncodeOpen(wire::HelloType::kOpenReply, reply));
  socket_->ReadNext();
}

void ServerHandshake::Adopt(Opened& result) {
  stage_ = Stage::kAdopting;
  LinkSetup setup = MakeSetup(fabric_, result.id, fabric::Side::kServer, client_);
  setup.info.why = "the client's choice";
  setup.info.peer = peer_;
  setup.peer_segment_bytes = open_.segment_bytes;
  setup.reply_lease_age_max = listener_->options().reply_lease_age_max;
  if (!peer_pidfd_ && result.sockets.stream >= 0) peer_pidfd_ = PeerPidfd(result.sockets.stream);
  setup.peer_pidfd = peer_pidfd_.Release();
  setup.stream_fd = result.sockets.stream;
  RunInSeat(engine_->reactor(), [self = shared_from_this(), setup] {
    CountedSink* const sink = &self->listener_->sink();
    self->engine_->Adopt(
        setup, nullptr, sink,
        [sink, listener = self->listener_, peer = self->peer_,
         transport = setup.info.transport](absl::StatusOr<Link*> proved) {
          if (proved.ok()) return;
          sink->Drop();
          reactor::Watch::Get().Post([listener, peer, transport, why = proved.status()] {
            listener->LogFailure(peer, absl::UnavailableError(absl::StrCat(
                                           transport, " was not proved: ", why.message())));
          });
        });
    reactor::Watch::Get().Post([self] {
      self->stage_ = Stage::kRefused;  // no job is under way any more
      if (self->ended_) return self->listener_->Ended(self);
      self->Close();
    });
  });
}

void ServerHandshake::Refuse(const absl::Status& why) {
  if (ended_ || stage_ == Stage::kRefused) return;
  listener_->LogFailure(peer_, why);
  stage_ = Stage::kRefused;
  const auto self = shared_from_this();
  if (socket_ == nullptr) return Close();
  UniqueFd stream = socket_->Take();
  const std::string text = wire::EncodeRefuse(why);
  (void)!::send(stream.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  CloseLater(std::move(stream));
  Close();
}

void ServerHandshake::FailSilently(const absl::Status& why) {
  if (ended_) return;
  listener_->LogFailure(peer_, why);
  Close();
}

void ServerHandshake::Close() {
  if (ended_) return;
  ended_ = true;
  const auto self = shared_from_this();
  if (has_tokens_) listener_->RemoveTokens(reply_);
  socket_.reset();
  side_.Reset();
  // A job under way ends it when it comes back.
  if (stage_ != Stage::kSetup && stage_ != Stage::kAdopting) listener_->Ended(self);
}

}  // namespace verbena::session
