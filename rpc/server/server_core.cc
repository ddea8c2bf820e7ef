#include "rpc/server/server_core.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "rpc/base/check.h"
#include "rpc/base/limits.h"
#include "rpc/reactor/reactors.h"
#include "rpc/session/engines.h"
#include "rpc/wire/hello.h"

namespace verbena::internal {
namespace {

// Calls of blocking methods that may wait for each worker thread.
constexpr size_t kQueuedPerWorker = 16;
// After the deadline of a drain: how long links may take to die before the rest is forced.
constexpr absl::Duration kDrainGrace = absl::Milliseconds(200);
// More threads than this are a mistake rather than a wish: each has a stack, and its queue.
constexpr int kWorkerThreadsMax = 4096;
// With those that this process has besides they fit a HELLO_REPLY.
constexpr size_t kTransportsMax = wire::kHelloTransportsMax / 2;

absl::Status CheckPositive(absl::string_view setter, absl::Duration value) {
  if (value > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(setter, "(", absl::FormatDuration(value), "): more than 0 is needed"));
}

absl::Status CheckOptions(const ServerOptions& options) {
  if (options.worker_threads() < 1 || options.worker_threads() > kWorkerThreadsMax) {
    return absl::InvalidArgumentError(absl::StrCat("set_worker_threads(", options.worker_threads(),
                                                   "): 1 to ", kWorkerThreadsMax, " are possible"));
  }
  if (options.connections_max() == 0)
    return absl::InvalidArgumentError("set_connections_max(0): at least 1 is needed");
  for (const Service* service : options.services()) {
    if (service == nullptr) return absl::InvalidArgumentError("add_service(nullptr)");
  }
  if (options.request_bytes_max() > limits::kMessageBytesHighest) {
    return absl::InvalidArgumentError(absl::StrCat("set_request_bytes_max(",
                                                   options.request_bytes_max(), "): at most ",
                                                   limits::kMessageBytesHighest, " are possible"));
  }
  absl::Status status = CheckPositive("set_handshake_timeout", options.handshake_timeout());
  if (!status.ok()) return status;
  return CheckPositive("set_reply_lease_age_max", options.reply_lease_age_max());
}

// One that is missing here is no mistake as long as there is another: programs run on many hosts.
absl::Status CheckTransports(const std::vector<std::string>& wanted, session::Engine& engine) {
  std::string here;
  for (const auto& fabric : engine.fabrics()) {
    absl::StrAppend(&here, here.empty() ? "" : ", ", fabric->traits().name);
  }
  if (wanted.size() > kTransportsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("set_transports: ", wanted.size(), " names; at most ", kTransportsMax));
  }
  bool any = wanted.empty();
  for (const std::string& name : wanted) {
    if (!wire::IsTransportName(name)) {
      return absl::InvalidArgumentError(absl::StrCat("set_transports: \"", absl::CHexEscape(name),
                                                     "\" is no name; known here: ", here));
    }
    any |= engine.FindFabric(name) != nullptr;
  }
  if (any) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("set_transports(", absl::StrJoin(wanted, ", "),
                                                    "): this process has only ", here));
}

}  // namespace

ServerCore::ServerCore(const ServerOptions& options)
    : options_(options),
      workers_(options.worker_threads(), options.worker_threads() * kQueuedPerWorker) {}

ServerCore::~ServerCore() {
  for (auto& [path, method] : methods_) {
    for (std::vector<UnaryServerCall*>& free : method->free) {
      for (UnaryServerCall* call : free) delete call;
    }
  }
}

absl::Status ServerCore::AddService(Service& service) {
  for (const MethodInfo& info : service.verbena_info().methods) {
    auto method = std::make_unique<ServedMethod>();
    method->info = &info;
    method->service = &service;
    method->server = this;
    method->request_bytes_max =
        info.request_bytes_max != 0 ? info.request_bytes_max : options_.request_bytes_max();
    method->free.resize(reactor::Reactors().size());
    if (!methods_.emplace(info.path, std::move(method)).second) {
      return absl::AlreadyExistsError(absl::StrCat(info.path, " is served twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status ServerCore::Start() {
  if (absl::Status status = CheckOptions(options_); !status.ok()) return status;
  for (Service* service : options_.services()) {
    absl::Status added = AddService(*service);
    if (!added.ok()) return added;
  }
  std::vector<session::Engine*> engines;
  for (reactor::Reactor* reactor : reactor::Reactors())
    engines.push_back(&session::EngineOf(*reactor));
  absl::Status status = CheckTransports(options_.transports(), *engines[0]);
  if (!status.ok()) return status;
  session::ListenOptions listen;
  listen.address = options_.listen();
  listen.transports = options_.transports();
  listen.connections_max = options_.connections_max();
  listen.handshake_timeout = options_.handshake_timeout();
  listen.reply_lease_age_max = options_.reply_lease_age_max();
  absl::MutexLock lock(&listener_mutex_);
  absl::StatusOr<std::unique_ptr<session::Listener>> listener =
      session::Listener::Listen(listen, std::move(engines), *this);
  if (!listener.ok()) return listener.status();
  listener_ = *std::move(listener);
  address_ = listener_->address();
  return absl::OkStatus();
}

void* ServerCore::Resolve(absl::string_view path) {
  const auto found = methods_.find(path);
  return found == methods_.end() ? nullptr : found->second.get();
}

uint64_t ServerCore::RequestBytesMax(void* method_cookie) {
  return static_cast<ServedMethod*>(method_cookie)->request_bytes_max;
}

session::ServerCall* ServerCore::OnRequest(session::Link& link, session::RequestView& request) {
  auto& method = *static_cast<ServedMethod*>(request.method_cookie);
  UnaryServerCall* call = UnaryServerCall::Take(method, link.engine().reactor());
  call->Begin(link, request);
  return call;
}

void ServerCore::OnLinkUp(session::Link& link) {
  bool late;
  {
    absl::MutexLock lock(&mutex_);
    links_.insert(&link);
    late = stopping_;
  }
  if (late) link.Close(absl::UnavailableError("the server is shutting down"));
}

void ServerCore::OnLinkDown(session::Link& link, const absl::Status&) {
  absl::MutexLock lock(&mutex_);
  links_.erase(&link);
}

void ServerCore::CallLingers() {
  absl::MutexLock lock(&mutex_);
  ++lingering_;
}

void ServerCore::CallLeaves() {
  absl::MutexLock lock(&mutex_);
  --lingering_;
}

void ServerCore::ForEachLink(void (*act)(session::Link&, int64_t), int64_t argument) {
  for (reactor::Reactor* reactor : reactor::Reactors()) {
    struct All : reactor::Work {
      All(ServerCore* c, reactor::Reactor* r, void (*a)(session::Link&, int64_t), int64_t n)
          : Work([](reactor::Work* work) {
              auto* self = static_cast<All*>(work);
              std::vector<session::Link*> links;
              {
                absl::MutexLock lock(&self->core->mutex_);
                for (session::Link* link : self->core->links_) {
                  if (&link->engine().reactor() == self->home) links.push_back(link);
                }
              }
              reactor::Reactor* const seat = self->home;
              for (session::Link* link : links) self->act(*link, self->argument);
              self->done.store(1);
              seat->Wake(self->done);
            }),
            core(c),
            home(r),
            act(a),
            argument(n) {}
      ServerCore* core;
      reactor::Reactor* home;
      void (*act)(session::Link&, int64_t);
      int64_t argument;
      std::atomic<uint32_t> done{0};
    } work(this, reactor, act, argument);
    reactor->PostSeat(work);
    reactor->DriveUntil(work.done);
  }
}

void ServerCore::StopListening() {
  absl::MutexLock lock(&listener_mutex_);
  listener_.reset();
}

void ServerCore::CheckMayBlock() const {
  VERBENA_CHECK(reactor::Reactor::Current() == nullptr,
                "a server cannot be stopped on a reactor thread: its handlers run there");
  VERBENA_CHECK(!workers_.OnWorker(),
                "a server cannot be stopped by its blocking handler: it would wait for that");
}

void ServerCore::Drain(absl::Time deadline) {
  CheckMayBlock();
  StopListening();
  const absl::Duration left = deadline - absl::Now();
  ForEachLink([](session::Link& link, int64_t deadline_ns) { link.Drain(deadline_ns); },
              reactor::Reactor::NowNs() + absl::ToInt64Nanoseconds(std::clamp(
                                              left, absl::ZeroDuration(), absl::Hours(24 * 365))));
  {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithDeadline(absl::Condition(this, &ServerCore::Idle), deadline + kDrainGrace);
  }
  Shutdown();
}

void ServerCore::Shutdown() {
  CheckMayBlock();
  StopListening();
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  ForEachLink([](session::Link& link,
                 int64_t) { link.Close(absl::UnavailableError("the server was shut down")); },
              0);
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &ServerCore::Idle));
  stopped_ = true;
}

void ServerCore::Wait() {
  CheckMayBlock();
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&stopped_));
}

}  // namespace verbena::internal
