#include "rpc/session/listen.h"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/base/clock.h"
#include "rpc/base/fork.h"
#include "rpc/base/limits.h"
#include "rpc/base/log.h"
#include "rpc/fabric/available.h"
#include "rpc/memory/region.h"
#include "rpc/reactor/service_threads.h"
#include "rpc/session/link_terms.h"
#include "rpc/session/random.h"
#include "rpc/session/server_handshake.h"
#include "rpc/wire/control.h"

namespace verbena::session {

using reactor::Watch;

namespace {

constexpr int kBacklog = 1024;
constexpr absl::Duration kAcceptRetry = absl::Milliseconds(100);

class ListenerImpl final : public Listener {
 public:
  explicit ListenerImpl(std::shared_ptr<ListenState> state) : state_(std::move(state)) {}
  ~ListenerImpl() override { state_->StopAndDrain(); }
  const std::string& address() const override { return state_->address(); }

 private:
  const std::shared_ptr<ListenState> state_;
};

// A unix socket's file that nobody listens on any more is in the way.
void RemoveStale(const SocketAddress& address, const std::string& path) {
  struct stat info;
  if (::lstat(path.c_str(), &info) != 0 || !S_ISSOCK(info.st_mode)) return;
  const UniqueFd probe = StartConnect(address);
  if (!probe && errno == ECONNREFUSED) ::unlink(path.c_str());
}

absl::StatusOr<UniqueFd> ListenOn(const SocketAddress& address) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return absl::UnavailableError(std::strerror(errno));
  CloseInForkChild(fd.get());
  const int on = 1, off = 0;
  if (address.family() != AF_UNIX)
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.family() == AF_INET6)
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (::bind(fd.get(), address.get(), address.bytes) == 0 && ::listen(fd.get(), kBacklog) == 0)
    return fd;
  const int error = errno;
  if (error == EADDRINUSE) return absl::AlreadyExistsError(std::strerror(error));
  return absl::UnavailableError(std::strerror(error));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Listen(const ListenOptions& options,
                                                           std::vector<Engine*> engines,
                                                           RequestSink& sink) {
  VERBENA_CHECK(!engines.empty(), "a listener needs an engine");
  // The proofs of links need a little: so that hardly a client's handshake waits for the first
  // slab. A pool that cannot grow is told of where it matters.
  reactor::PostGrowth([] { memory::AllocateBlock(wire::kPatternBytes).status().IgnoreError(); });
  auto state = std::make_shared<ListenState>(options, std::move(engines), sink);
  if (absl::Status status = state->Open(); !status.ok()) return status;
  state->StartAccepting();
  return std::make_unique<ListenerImpl>(std::move(state));
}

void CountedSink::OnLinkUp(Link& link) {
  {
    const std::lock_guard lock(mutex_);
    if (!detached_) return to_.OnLinkUp(link);
    unheard_.push_back(&link);
  }
  link.Close(absl::UnavailableError("the server does not listen any more"));
}

void CountedSink::OnLinkDown(Link& link, const absl::Status& cause) {
  bool unheard = false;
  {
    const std::lock_guard lock(mutex_);
    unheard = std::erase(unheard_, &link) > 0;
  }
  if (!unheard) to_.OnLinkDown(link, cause);
  Drop();
}

void CountedSink::Detach() {
  const std::lock_guard lock(mutex_);
  detached_ = true;
}

void CountedSink::Drop() {
  if (links_.fetch_sub(1) == 1) delete this;
}

// A connection to the side socket until it has shown its token.
struct ListenState::SideArrival {
  UniqueFd fd;
  wire::HelloToken token{};
  size_t bytes = 0;
};

ListenState::ListenState(const ListenOptions& options, std::vector<Engine*> engines,
                         RequestSink& sink)
    : options_(options), engines_(std::move(engines)), sink_(new CountedSink(sink)) {}

ListenState::~ListenState() { sink_->Drop(); }

absl::Status ListenState::Open() {
  if (absl::Status status = OpenStream(); !status.ok()) return status;
  absl::StatusOr<SideListener> side = ListenAside(options_.runtime_directory);
  if (side.ok()) {
    side_ = *std::move(side);
  } else {
    side_reason_ = std::string(side.status().message());
    VERBENA_LOG(kWarning, "listening on ", address_,
                " without a side socket, so without shared memory: ", side_reason_);
  }
  return absl::OkStatus();
}

absl::Status ListenState::OpenStream() {
  const absl::StatusOr<ParsedAddress> parsed = ParseAddress(options_.address);
  if (!parsed.ok()) return parsed.status();
  absl::StatusOr<std::vector<SocketAddress>> addresses = Resolve(*parsed, true);
  if (!addresses.ok()) return addresses.status();
  // Without a host: IPv6 first, which takes IPv4 too.
  std::stable_partition(addresses->begin(), addresses->end(),
                        [](const SocketAddress& a) { return a.family() == AF_INET6; });
  absl::Status why;
  for (const SocketAddress& address : *addresses) {
    if (parsed->is_unix) RemoveStale(address, parsed->host);
    absl::StatusOr<UniqueFd> fd = ListenOn(address);
    if (fd.ok()) {
      stream_ = *std::move(fd);
      address_ = LocalText(stream_.get());
      if (parsed->is_unix) unlink_path_ = parsed->host;
      return absl::OkStatus();
    }
    if (why.ok() || absl::IsAlreadyExists(fd.status())) why = fd.status();
    // Another address of the name may be free, but clients would go to who has this one.
    if (absl::IsAlreadyExists(why)) break;
  }
  return absl::Status(why.code(),
                      absl::StrCat("cannot listen on ", options_.address, ": ", why.message()));
}

void ListenState::StartAccepting() {
  const auto self = shared_from_this();
  Watch::Get().AddFd(stream_.get(), EPOLLIN, [self](uint32_t) { self->OnAccept(); });
  for (const UniqueFd* fd : {&side_.by_path, &side_.by_abstract}) {
    if (!*fd) continue;
    Watch::Get().AddFd(fd->get(), EPOLLIN,
                       [self, listener = fd->get()](uint32_t) { self->OnAcceptAside(listener); });
  }
}

void ListenState::StopAndDrain() {
  VERBENA_CHECK(!Watch::Get().OnWatchThread());
  if (Forked()) return;  // the thread that would do it does not exist here
  Watch::Get().Post([self = shared_from_this()] { self->StopOnWatch(); });
  std::unique_lock lock(drain_mutex_);
  while (!is_drained_) drained_.wait(lock);
  sink_->Detach();
}

void ListenState::StopOnWatch() {
  stopped_ = true;
  for (UniqueFd* fd : {&stream_, &side_.by_path, &side_.by_abstract}) {
    if (*fd) Watch::Get().RemoveFd(fd->get());
    fd->Reset();
  }
  if (!unlink_path_.empty()) ::unlink(unlink_path_.c_str());
  if (!side_.path.empty()) ::unlink(side_.path.c_str());
  while (!arrivals_.empty()) EndSide(*arrivals_.begin());
  const auto open = handshakes_;
  for (const auto& handshake : open) handshake->Close();
  Ended(nullptr);
}

void ListenState::Ended(const std::shared_ptr<ServerHandshake>& handshake) {
  if (handshake != nullptr) handshakes_.erase(handshake);
  if (!stopped_) {
    if (paused_ && handshakes_.size() < limits::kHandshakesMax) PauseAccepting(false);
    return;
  }
  if (!handshakes_.empty()) return;
  std::lock_guard lock(drain_mutex_);
  is_drained_ = true;
  drained_.notify_all();
}

void ListenState::PauseAccepting(bool pause) {
  paused_ = pause;
  if (!stopped_) Watch::Get().ModifyFd(stream_.get(), pause ? 0u : uint32_t{EPOLLIN});
}

void ListenState::OnAccept() {
  while (handshakes_.size() < limits::kHandshakesMax) {
    UniqueFd stream(::accept4(stream_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!stream) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
      LogFailure(address_,
                 absl::ResourceExhaustedError(absl::StrCat("accept: ", std::strerror(errno))));
      PauseAccepting(true);
      Watch::Get().PostAfter(kAcceptRetry, [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->PauseAccepting(false);
      });
      return;
    }
    CloseInForkChild(stream.get());
    SetNoDelay(stream.get());
    auto handshake = std::make_shared<ServerHandshake>(shared_from_this(), PeerText(stream.get()));
    handshakes_.insert(handshake);
    handshake->Start(std::move(stream));
  }
  PauseAccepting(true);
}

void ListenState::OnAcceptAside(int listener) {
  for (;;) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) return;
    CloseInForkChild(fd.get());
    if (const absl::Status status = CheckPeerUser(fd.get()); !status.ok()) {
      // Its handshake goes on, over another transport.
      LogFailure("the side socket",
                 absl::Status(status.code(),
                              absl::StrCat(status.message(), ", so not over shared memory")));
      continue;
    }
    if (arrivals_.size() >= limits::kHandshakesMax)
      continue;  // the client tries its next transport
    auto arrival = std::make_shared<SideArrival>();
    arrival->fd = std::move(fd);
    arrivals_.insert(arrival);
    const auto self = shared_from_this();
    Watch::Get().AddFd(arrival->fd.get(), EPOLLIN, [self, arrival](uint32_t) {
      const auto keep = arrival;
      self->OnSideToken(keep);
    });
    Watch::Get().PostAfter(options_.handshake_timeout,
                           [weak = weak_from_this(), late = std::weak_ptr<SideArrival>(arrival)] {
                             const auto state = weak.lock();
                             const auto silent = late.lock();
                             if (state != nullptr && silent != nullptr) state->EndSide(silent);
                           });
  }
}

void ListenState::OnSideToken(const std::shared_ptr<SideArrival>& arrival) {
  const ssize_t n = ::recv(arrival->fd.get(), arrival->token.data() + arrival->bytes,
                           arrival->token.size() - arrival->bytes, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n > 0) arrival->bytes += static_cast<size_t>(n);
  if (n > 0 && arrival->bytes < arrival->token.size()) return;
  std::shared_ptr<ServerHandshake> handshake;
  UniqueFd side;
  if (n > 0) {
    handshake = TakeToken(side_tokens_, arrival->token);
    Watch::Get().RemoveFd(arrival->fd.get());
    side = std::move(arrival->fd);
    if (handshake == nullptr) {
      const absl::string_view token(reinterpret_cast<const char*>(arrival->token.data()),
                                    arrival->token.size());
      LogFailure("the side socket",
                 absl::PermissionDeniedError(absl::StrCat("no handshake waits for the token ",
                                                          absl::BytesToHexString(token))));
    }
  }
  EndSide(arrival);
  if (handshake != nullptr) handshake->AttachSide(std::move(side));
}

void ListenState::EndSide(const std::shared_ptr<SideArrival>& arrival) {
  const auto keep = arrival;
  if (keep->fd) Watch::Get().RemoveFd(keep->fd.get());
  keep->fd.Reset();
  arrivals_.erase(keep);
}

Engine& ListenState::NextEngine() { return *engines_[next_engine_++ % engines_.size()]; }

absl::Status ListenState::CheckRoom() const {
  if (sink_->links() < options_.connections_max) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the server has its maximum of ", options_.connections_max, " connections"));
}

bool ListenState::Allowed(absl::string_view transport) const {
  if (options_.transports.empty()) return true;
  return std::any_of(options_.transports.begin(), options_.transports.end(),
                     [&](const std::string& name) { return name == transport; });
}

void ListenState::Describe(Engine& engine, wire::Hello& reply) const {
  for (const auto& fabric : engine.fabrics()) {
    const absl::string_view name = fabric->traits().name;
    reply.transports.push_back(
        {std::string(name), Allowed(name) ? "" : "the server is told not to offer it"});
  }
  for (const std::string& name : options_.transports) {
    if (engine.FindFabric(name) != nullptr) continue;
    const std::string why = fabric::WhyMissing(name);
    reply.transports.push_back({name, why.empty() ? "the server does not have it" : why});
  }
  for (const absl::string_view name : fabric::kFabricNames) {
    const std::string why = fabric::WhyMissing(name);
    const bool said = std::any_of(reply.transports.begin(), reply.transports.end(),
                                  [&](const auto& transport) { return transport.name == name; });
    if (!said && !why.empty()) reply.transports.push_back({std::string(name), why});
  }
  reply.side_path = side_.path;
  reply.side_abstract = side_.abstract_name;
}

void ListenState::AddTokens(const wire::Hello& reply,
                            const std::shared_ptr<ServerHandshake>& handshake) {
  side_tokens_[reply.side_token] = handshake;
}

void ListenState::RemoveTokens(const wire::Hello& reply) { side_tokens_.erase(reply.side_token); }

std::shared_ptr<ServerHandshake> ListenState::TakeToken(Tokens& tokens,
                                                        const wire::HelloToken& token) {
  const auto found = tokens.find(token);
  if (found == tokens.end()) return nullptr;
  auto handshake = found->second.lock();
  tokens.erase(found);
  return handshake;
}

void ListenState::LogFailure(const std::string& peer, const absl::Status& why) {
  const int64_t now_ns = SteadyNs();
  if (last_log_ns_ != 0 && now_ns - last_log_ns_ < 1'000'000'000) {
    ++unlogged_;
    return;
  }
  last_log_ns_ = now_ns;
  VERBENA_LOG(kWarning, "handshake with ", peer, " on ", address_, " failed: ", why.message(),
              unlogged_ == 0 ? "" : absl::StrCat(" (", unlogged_, " more since the last line)"));
  unlogged_ = 0;
}

}  // namespace verbena::session
