#include "rpc/session/connect.h"

#include <netinet/tcp.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rpc/base/fork.h"
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

using reactor::Watch;

namespace {

// The engine's own, best first, and between them what this process would have on another machine:
// it is told why a link did not take that.
std::vector<std::string> TransportsHere(const Engine& engine) {
  std::vector<std::string> names;
  const auto has = [&](absl::string_view name) {
    return std::any_of(engine.fabrics().begin(), engine.fabrics().end(),
                       [&](const auto& fabric) { return fabric->traits().name == name; });
  };
  const bool real = std::any_of(fabric::kFabricNames.begin(), fabric::kFabricNames.end(), has);
  for (const absl::string_view name : fabric::kFabricNames) {
    if (has(name) || (real && !fabric::WhyMissing(name).empty())) names.emplace_back(name);
  }
  for (const auto& fabric : engine.fabrics()) {
    const absl::string_view name = fabric->traits().name;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.emplace_back(name);
  }
  return names;
}

std::string NotHere(absl::string_view name) {
  const std::string why = fabric::WhyMissing(name);
  return absl::StrCat("this process does not have it", why.empty() ? "" : ": ", why);
}

}  // namespace

void Connect(Engine& engine, const ConnectOptions& options, LinkOwner& owner,
             absl::AnyInvocable<void(absl::StatusOr<Link*>) &&> done) {
  std::make_shared<ClientAttempt>(engine, options, owner, std::move(done))->Start();
}

ClientAttempt::ClientAttempt(Engine& engine, const ConnectOptions& options, LinkOwner& owner,
                             Done done)
    : engine_(engine), options_(options), owner_(owner), done_(std::move(done)) {}

void ClientAttempt::Start() {
  Watch::Get().Post([self = shared_from_this()] { self->Begin(); });
  Watch::Get().PostAfter(options_.timeout, [weak = weak_from_this()] {
    const std::shared_ptr<ClientAttempt> self = weak.lock();
    if (self == nullptr || self->concluded_ || self->failure_) return;
    self->Fail(absl::UnavailableError(absl::StrCat(self->options_.address, ": no link after ",
                                                   absl::FormatDuration(self->options_.timeout),
                                                   ", while ", self->stage_)));
  });
}

void ClientAttempt::Begin() {
  absl::StatusOr<ParsedAddress> parsed = ParseAddress(options_.address);
  if (!parsed.ok()) return Fail(parsed.status());
  parsed_ = *std::move(parsed);
  if (absl::Status status = ChooseCandidates(); !status.ok()) return Fail(status);
  absl::StatusOr<std::vector<SocketAddress>> numeric = ResolveNumeric(parsed_, false);
  if (numeric.ok()) return OnResolved(std::move(numeric));
  // Names may take seconds. Nobody waits for this job: the attempt may end before it does.
  reactor::PostResolve([self = shared_from_this(), parsed = parsed_] {
    Watch::Get().Post([self, addresses = Resolve(parsed, false)]() mutable {
      if (!self->failure_ && !self->concluded_) self->OnResolved(std::move(addresses));
    });
  });
}

absl::Status ClientAttempt::ChooseCandidates() {
  candidates_ = options_.transports.empty() ? TransportsHere(engine_) : options_.transports;
  std::string missing;
  for (const std::string& name : candidates_) {
    if (engine_.FindFabric(name) != nullptr) return absl::OkStatus();
    absl::StrAppend(&missing, missing.empty() ? "" : "; ", name, ": ", NotHere(name));
  }
  const std::string has = absl::StrJoin(
      engine_.fabrics(), ", ",
      [](std::string* out, const auto& fabric) { absl::StrAppend(out, fabric->traits().name); });
  return absl::FailedPreconditionError(absl::StrCat("no transport to ", options_.address,
                                                    ": this process has ", has,
                                                    ", and not what was asked for: ", missing));
}

void ClientAttempt::OnResolved(absl::StatusOr<std::vector<SocketAddress>> addresses) {
  if (!addresses.ok()) {
    return Fail(absl::Status(addresses.status().code(),
                             absl::StrCat(options_.address, ": ", addresses.status().message())));
  }
  addresses_ = *std::move(addresses);
  ConnectNext();
}

void ClientAttempt::ConnectNext() {
  if (failure_) return;
  stage_ = "connecting";
  if (next_address_ == addresses_.size()) {
    return Fail(absl::UnavailableError(
        absl::StrCat("cannot connect to ", options_.address, ": ", connect_errors_)));
  }
  connected_to_ = addresses_[next_address_++];
  AwaitWritable(StartConnect(connected_to_), [this](UniqueFd stream, absl::Status status) {
    if (status.ok()) return OnConnected(std::move(stream));
    absl::StrAppend(
        &connect_errors_, connect_errors_.empty() ? "" : "; ",
        connected_to_.family() == AF_UNIX ? "" : absl::StrCat(AddressText(connected_to_), ": "),
        status.message());
    ConnectNext();
  });
}

void ClientAttempt::OnConnected(UniqueFd stream) {
  stage_ = "waiting for HELLO_REPLY";
  const auto self = shared_from_this();
  HelloSocket::Events events;
  events.on_message = [self](wire::HelloType type, std::string body) {
    const auto keep = self;
    keep->OnMessage(type, body);
  };
  events.on_end = [self](absl::Status why) {
    const auto keep = self;
    keep->Fail(absl::UnavailableError(
        absl::StrCat(keep->options_.address, ": ", why.message(), ", while ", keep->stage_)));
  };
  socket_ = std::make_unique<HelloSocket>(std::move(stream), std::move(events));
  wire::Hello hello;
  hello.incarnation = ProcessIncarnation();
  hello.open_calls_max = limits::kOpenCallsMax;
  for (const std::string& name : candidates_) {
    const bool here = engine_.FindFabric(name) != nullptr;
    hello.transports.push_back({name, here ? std::string() : NotHere(name)});
  }
  socket_->Send(wire::EncodeHello(wire::HelloType::kHello, hello));
  socket_->ReadNext();
}

void ClientAttempt::OnMessage(wire::HelloType type, const std::string& body) {
  const bool opening = opening_.fabric != nullptr;
  if (type == wire::HelloType::kRefuse) {
    absl::Status refusal;
    if (absl::Status status = wire::DecodeRefuse(body, refusal); !status.ok()) refusal = status;
    const bool kept = refusal.code() == absl::StatusCode::kResourceExhausted ||
                      refusal.code() == absl::StatusCode::kFailedPrecondition ||
                      refusal.code() == absl::StatusCode::kUnauthenticated ||
                      refusal.code() == absl::StatusCode::kPermissionDenied;
    return Fail(absl::Status(kept ? refusal.code() : absl::StatusCode::kUnavailable,
                             absl::StrCat(options_.address, " refused: ", refusal.message())));
  }
  if (!opening && type == wire::HelloType::kHelloReply) return OnHelloReply(body);
  if (opening && type == wire::HelloType::kOpenReply) return OnOpenReply(body);
  Fail(absl::UnavailableError(
      absl::StrCat(options_.address, " sent ", wire::HelloTypeName(type), ", while ", stage_)));
}

void ClientAttempt::OnHelloReply(const std::string& body) {
  absl::StatusOr<wire::Hello> reply = wire::DecodeHello(body);
  absl::Status status = reply.ok() ? CheckTerms(*reply) : reply.status();
  if (status.ok() &&
      (reply->version > wire::kProtocolVersion || reply->version < wire::kProtocolVersionOldest)) {
    status = VersionMismatch(*reply);
  }
  if (!status.ok()) {
    // Trying again helps where the server was cut off, not where it speaks another version.
    const bool kept = absl::IsFailedPrecondition(status);
    return Fail(absl::Status(kept ? status.code() : absl::StatusCode::kUnavailable,
                             absl::StrCat(options_.address, ": ", status.message())));
  }
  server_ = *std::move(reply);
  OpenNext();
}

void ClientAttempt::OpenNext() {
  if (failure_) return;
  opening_ = {};
  while (!candidates_.empty()) {
    if (engine_.FindFabric(candidates_.front()) == nullptr) {
      NoteReason(absl::UnavailableError(NotHere(candidates_.front())));
      candidates_.erase(candidates_.begin());
      continue;
    }
    const auto offer = std::find_if(server_.transports.begin(), server_.transports.end(),
                                    [&](const auto& t) { return t.name == candidates_.front(); });
    if (offer != server_.transports.end() && offer->reason.empty()) break;
    NoteReason(absl::UnavailableError(offer == server_.transports.end()
                                          ? "the server does not offer it"
                                          : "the server: " + offer->reason));
    candidates_.erase(candidates_.begin());
  }
  if (candidates_.empty()) return NoneWorks();
  stage_ = "making memory for the proof of a transport";
  if (!asked_for_memory_ && !HasRoom(wire::kPatternBytes, [self = shared_from_this()] {
        if (!self->concluded_) self->OpenNext();
      })) {
    asked_for_memory_ = true;
    return;
  }
  stage_ = "setting a transport up";
  const absl::StatusOr<LinkId> id = engine_.ReserveLink();
  if (!id.ok()) return Fail(id.status());
  opening_.fabric = engine_.FindFabric(candidates_.front());
  opening_.id = *id;
  OnSetup<absl::StatusOr<fabric::Offer>>(
      [fabric = opening_.fabric, id = *id] {
        return fabric->Prepare(id, fabric::Side::kClient, "");
      },
      [this](absl::StatusOr<fabric::Offer> offer) { OnPrepared(std::move(offer)); });
}

void ClientAttempt::OnPrepared(absl::StatusOr<fabric::Offer> offer) {
  if (!offer.ok()) return TransportFailed(offer.status());
  opening_.prepared = true;
  opening_.offer = *std::move(offer);
  if (failure_) return CloseDescriptors(opening_.offer.fds);
  if (!opening_.offer.fds.empty()) {
    const absl::Status status = PassDescriptors();
    CloseDescriptors(opening_.offer.fds);
    if (!status.ok()) return TransportFailed(status);
  }
  SendOpen();
}

absl::Status ClientAttempt::PassDescriptors() {
  absl::StatusOr<UniqueFd> side = ConnectAside(server_);
  if (!side.ok()) return side.status();
  opening_.side = *std::move(side);
  opening_.peer_pidfd = PeerPidfd(opening_.side.get());
  return SendDescriptors(opening_.side.get(), opening_.offer.fds);
}

void ClientAttempt::SendOpen() {
  stage_ = "waiting for OPEN_REPLY";
  wire::OpenMessage open;
  open.transport = candidates_.front();
  open.segment_bytes = opening_.fabric->traits().segment_bytes;
  open.descriptors = opening_.side ? static_cast<uint32_t>(opening_.offer.fds.size()) : 0;
  open.blob = opening_.offer.blob;
  socket_->Send(wire::EncodeOpen(wire::HelloType::kOpen, open));
  socket_->ReadNext();
}

void ClientAttempt::OnOpenReply(const std::string& body) {
  const absl::StatusOr<wire::OpenMessage> reply = wire::DecodeOpen(body);
  if (!reply.ok()) {
    return Fail(
        absl::UnavailableError(absl::StrCat(options_.address, ": ", reply.status().message())));
  }
  if (!reply->status.ok()) {
    // The code is kept: a transport that has its maximum of links at the server may work later.
    return TransportFailed(
        absl::Status(reply->status.code(), absl::StrCat("the server: ", reply->status.message())));
  }
  std::vector<int> fds;
  absl::Status status = CheckSegment(*reply);
  if (status.ok() && reply->descriptors > 0) {
    absl::StatusOr<std::vector<int>> received =
        opening_.side
            ? ReceiveDescriptors(opening_.side.get(), reply->descriptors)
            : absl::InvalidArgumentError("the server sends descriptors without a side socket");
    status = received.status();
    if (status.ok()) fds = *std::move(received);
  }
  if (status.ok()) return Complete(*reply, std::move(fds));
  // The server believes that the link is up: this connection is used up.
  NotProved(status);
}

void ClientAttempt::Complete(const wire::OpenMessage& reply, std::vector<int> fds) {
  stage_ = "proving a transport";
  opening_.peer_segment_bytes = reply.segment_bytes;
  fabric::Sockets sockets{socket_->Take().Release(), opening_.side.Release()};
  socket_.reset();
  using Result = std::pair<absl::Status, fabric::Sockets>;
  OnSetup<Result>(
      [fabric = opening_.fabric, id = opening_.id, peer = fabric::Offer{reply.blob, std::move(fds)},
       sockets]() mutable {
        absl::Status status = fabric->Complete(id, std::move(peer), sockets);
        return Result(std::move(status), sockets);
      },
      [this](Result result) {
        opening_.prepared = result.first.ok();  // else nothing is left of it
        opening_.side.Reset(std::exchange(result.second.side, -1));
        if (result.first.ok() && !failure_) return Adopt(result.second);
        UniqueFd(result.second.stream).Reset();
        if (!failure_) NotProved(result.first);
      });
}

void ClientAttempt::Adopt(const fabric::Sockets& sockets) {
  LinkSetup setup = MakeSetup(opening_.fabric, opening_.id, fabric::Side::kClient, server_);
  setup.info.why = !why_.empty()                     ? why_
                   : options_.transports.size() == 1 ? "the only one that was asked for"
                                                     : "the first choice of both ends";
  setup.info.peer = options_.address;
  setup.peer_segment_bytes = opening_.peer_segment_bytes;
  if (!opening_.peer_pidfd && sockets.stream >= 0) opening_.peer_pidfd = PeerPidfd(sockets.stream);
  setup.peer_pidfd = opening_.peer_pidfd.Release();
  setup.stream_fd = sockets.stream;
  opening_ = {};  // the link's from now on
  busy_ = true;
  RunInSeat(engine_.reactor(), [self = shared_from_this(), setup]() mutable {
    self->engine_.Adopt(setup, &self->owner_, nullptr, [self](absl::StatusOr<Link*> proved) {
      if (proved.ok()) {
        // A deadline that passed while the link was being proved does not undo it.
        std::move(self->done_)(proved);
        Watch::Get().Post([self] { self->concluded_ = true; });
        return;
      }
      Watch::Get().Post([self, why = proved.status()] {
        self->busy_ = false;
        if (self->failure_) return self->Conclude();
        self->NotProved(why);
      });
    });
  });
}

void ClientAttempt::NotProved(const absl::Status& why) {
  // A busy or dying peer, not one that cannot.
  may_work_later_ |=
      absl::IsUnavailable(why) || absl::IsDeadlineExceeded(why) || absl::IsResourceExhausted(why);
  NoteReason(why);
  socket_.reset();
  candidates_.erase(candidates_.begin());
  if (candidates_.empty()) return NoneWorks();
  auto again = [this](bool) {
    opening_ = {};
    next_address_ = 0;
    connect_errors_.clear();
    ConnectNext();
  };
  if (opening_.id == LinkId::kNone) return again(true);
  OnSetup<bool>(
      GiveUp(engine_, opening_.fabric, opening_.id, std::exchange(opening_.prepared, false)),
      std::move(again));
  opening_.id = LinkId::kNone;
}

void ClientAttempt::TransportFailed(const absl::Status& why) {
  exhausted_ |= absl::IsResourceExhausted(why);
  NoteReason(why);
  candidates_.erase(candidates_.begin());
  opening_.side.Reset();
  OnSetup<bool>(
      GiveUp(engine_, opening_.fabric, opening_.id, std::exchange(opening_.prepared, false)),
      [this](bool) { OpenNext(); });
  opening_.id = LinkId::kNone;
}

void ClientAttempt::NoneWorks() {
  std::string text = absl::StrCat("no transport to ", options_.address, " works: ", why_);
  if (exhausted_) return Fail(absl::ResourceExhaustedError(text));
  Fail(may_work_later_ ? absl::UnavailableError(text) : absl::FailedPreconditionError(text));
}

void ClientAttempt::NoteReason(const absl::Status& why) {
  absl::StrAppend(&why_, why_.empty() ? "" : "; ", NamedOnce(candidates_.front(), why.message()));
}

void ClientAttempt::Fail(absl::Status why) {
  if (failure_ || concluded_) return;
  failure_ = std::move(why);
  if (!busy_) Conclude();
}

void ClientAttempt::Conclude() {
  socket_.reset();
  StopAwaiting();
  opening_.side.Reset();
  if (opening_.id != LinkId::kNone) {
    OnSetup<bool>(
        GiveUp(engine_, opening_.fabric, opening_.id, std::exchange(opening_.prepared, false)),
        nullptr);
    opening_.id = LinkId::kNone;
    return;
  }
  if (std::exchange(concluded_, true)) return;
  RunInSeat(engine_.reactor(),
            [self = shared_from_this()] { std::move(self->done_)(*self->failure_); });
}

template <class Result>
void ClientAttempt::OnSetup(absl::AnyInvocable<Result() &&> job,
                            absl::AnyInvocable<void(Result) &&> then) {
  busy_ = true;
  reactor::PostSetup(
      [self = shared_from_this(), job = std::move(job), then = std::move(then)]() mutable {
        Watch::Get().Post([self, result = std::move(job)(), then = std::move(then)]() mutable {
          self->busy_ = false;
          if (then) {
            // Even when the attempt has failed meanwhile: `then` takes over what the job made.
            std::move(then)(std::move(result));
          }
          if (self->failure_ && !self->busy_) self->Conclude();
        });
      });
}

void ClientAttempt::AwaitWritable(UniqueFd fd,
                                  absl::AnyInvocable<void(UniqueFd, absl::Status) &&> then) {
  if (!fd)
    return std::move(then)(UniqueFd(), absl::UnavailableError(absl::StrCat(std::strerror(errno))));
  awaited_ = std::move(fd);
  Watch::Get().AddFd(awaited_.get(), EPOLLOUT,
                     [self = shared_from_this(), then = std::move(then)](uint32_t) mutable {
                       auto keep = self;
                       auto next = std::move(then);
                       UniqueFd ready = std::move(keep->awaited_);
                       Watch::Get().RemoveFd(ready.get());
                       int error = 0;
                       socklen_t bytes = sizeof(error);
                       ::getsockopt(ready.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
                       std::move(next)(std::move(ready),
                                       error == 0 ? absl::OkStatus()
                                                  : absl::UnavailableError(std::strerror(error)));
                     });
}

void ClientAttempt::StopAwaiting() {
  if (!awaited_) return;
  Watch::Get().RemoveFd(awaited_.get());
  awaited_.Reset();
}

}  // namespace verbena::session
