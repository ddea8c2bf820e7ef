#include "tests/session/bootstrap_fakes.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "rpc/base/limits.h"
#include "rpc/base/slowdown.h"
#include "rpc/reactor/service_threads.h"
#include "rpc/session/address.h"
#include "rpc/session/seat_job.h"

namespace verbena::session {
namespace {

uint64_t InodeOf(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 ? info.st_ino : 0;
}

std::string BlobOf(const std::string& name, fabric::Side side) {
  return name + (side == fabric::Side::kClient ? " client" : " server");
}

}  // namespace

FakeFabric::FakeFabric(const FakeFabricOptions& options) : options_(options) {
  traits_.name = options_.name;
  traits_.segment_bytes = options_.segment_bytes;
}

FakeFabric::~FakeFabric() {
  for (auto& [id, state] : links_) CloseState(state);
}

absl::StatusOr<fabric::Offer> FakeFabric::Prepare(LinkId link, fabric::Side side,
                                                  absl::string_view peer) {
  if (!reactor::OnSetupThread()) prepared_on_wrong_thread = true;
  ++prepares;
  const bool client = side == fabric::Side::kClient;
  const absl::Status& fault = client ? faults.prepare_client : faults.prepare_server;
  if (!fault.ok()) return fault;
  if (!client && peer != absl::string_view(BlobOf(options_.name, fabric::Side::kClient))) {
    return absl::InvalidArgumentError("not the client's blob");
  }
  fabric::Offer offer;
  offer.blob = BlobOf(options_.name, side);
  if (options_.passes_descriptors) offer.fds = {memfd_create("fake", MFD_CLOEXEC)};
  std::lock_guard lock(mutex_);
  links_[link].side = side;
  return offer;
}

absl::Status FakeFabric::Complete(LinkId link, fabric::Offer peer, fabric::Sockets& sockets) {
  std::lock_guard lock(mutex_);
  State& state = links_.at(link);
  const bool client = state.side == fabric::Side::kClient;
  absl::Status status = client ? faults.complete_client : faults.complete_server;
  if (status.ok() &&
      peer.blob != BlobOf(options_.name, client ? fabric::Side::kServer : fabric::Side::kClient)) {
    status = absl::InvalidArgumentError("not the peer's blob");
  }
  if (status.ok() && peer.fds.size() != (options_.passes_descriptors ? 1u : 0u)) {
    status = absl::InvalidArgumentError("descriptors are missing");
  }
  if (!peer.fds.empty()) state.descriptor = InodeOf(peer.fds[0]);
  for (int fd : peer.fds) close(fd);
  if (!status.ok()) {
    links_.erase(link);
    return status;
  }
  if (options_.passes_descriptors) state.side_socket = std::exchange(sockets.side, -1);
  if (options_.takes_stream) state.stream = std::exchange(sockets.stream, -1);
  return absl::OkStatus();
}

void FakeFabric::Abandon(LinkId link) {
  std::lock_guard lock(mutex_);
  const auto found = links_.find(link);
  if (found == links_.end()) return;
  CloseState(found->second);
  links_.erase(found);
}

void FakeFabric::CloseState(State& state) {
  for (int fd : {state.stream, state.side_socket}) {
    if (fd >= 0) close(fd);
  }
}

size_t FakeFabric::links() {
  std::lock_guard lock(mutex_);
  return links_.size();
}
uint64_t FakeFabric::descriptor_of(LinkId link) {
  std::lock_guard lock(mutex_);
  return links_.at(link).descriptor;
}

FakeEngine::FakeEngine(std::vector<FakeFabricOptions> fabrics) {
  reactor::ReactorOptions options;
  options.pin = false;
  reactor_ = reactor::Reactor::Create(options).value();
  for (const FakeFabricOptions& fabric : fabrics)
    fabrics_.push_back(std::make_unique<FakeFabric>(fabric));
}

void SettleServiceThreads() {
  for (int round = 0; round < 2; ++round) {
    std::promise<void> watched, set_up, grown;
    reactor::PostGrowth([&] { grown.set_value(); });
    grown.get_future().wait();
    reactor::PostSetup([&] { set_up.set_value(); });
    set_up.get_future().wait();
    reactor::Watch::Get().Post([&] { watched.set_value(); });
    watched.get_future().wait();
  }
}

FakeEngine::~FakeEngine() {
  CloseLinks();
  SettleServiceThreads();
  reactor_.reset();
}

absl::StatusOr<LinkId> FakeEngine::ReserveLink() {
  std::lock_guard lock(mutex_);
  if (reserved_.size() >= links_max)
    return absl::ResourceExhaustedError(absl::StrCat("at most ", links_max, " links"));
  const auto id = static_cast<LinkId>(next_id_++);
  reserved_[id] = true;
  return id;
}

void FakeEngine::ReturnLink(LinkId id) {
  std::lock_guard lock(mutex_);
  reserved_.erase(id);
}

void FakeEngine::Adopt(const LinkSetup& setup, LinkOwner* owner, RequestSink* sink,
                       absl::AnyInvocable<void(absl::StatusOr<Link*>) &&> proved) {
  if (!reactor_->InSeat()) adopted_outside_seat = true;
  auto link = std::make_unique<FakeLink>(setup);
  link->owner = owner;
  link->sink = sink;
  // Later, as frames would.
  RunInSeat(*reactor_, [this, link = std::move(link), proved = std::move(proved)]() mutable {
    FakeLink* const raw = link.get();
    const auto fault = not_proved.find(raw->setup.info.transport);
    {
      std::lock_guard lock(mutex_);
      links_.push_back(std::move(link));
    }
    changed_.notify_all();
    if (fault != not_proved.end()) {
      raw->owner = nullptr;
      raw->sink = nullptr;
      const absl::Status why = fault->second;
      CloseLink(*raw);
      return std::move(proved)(why);
    }
    if (raw->owner != nullptr) raw->owner->OnLinkUp(*raw);
    if (raw->sink != nullptr) raw->sink->OnLinkUp(*raw);
    std::move(proved)(raw);
  });
}

FakeFabric* FakeEngine::Fake(absl::string_view name) {
  for (const auto& fabric : fabrics_) {
    if (fabric->traits().name == name) return static_cast<FakeFabric*>(fabric.get());
  }
  return nullptr;
}

void FakeEngine::CloseLink(FakeLink& link) {
  for (int fd : {link.setup.stream_fd, link.setup.peer_pidfd}) {
    if (fd >= 0) close(fd);
  }
  link.setup.fabric->Close(link.setup.id);
  ReturnLink(link.setup.id);
  if (link.owner != nullptr) link.owner->OnLinkDown(&link, absl::OkStatus());
  if (link.sink != nullptr) link.sink->OnLinkDown(link, absl::OkStatus());
  std::lock_guard lock(mutex_);
  std::erase_if(links_, [&](const auto& l) { return l.get() == &link; });
}

void FakeEngine::CloseLinks() {
  for (FakeLink* link : links()) CloseLink(*link);
}

std::vector<FakeLink*> FakeEngine::links() {
  std::lock_guard lock(mutex_);
  std::vector<FakeLink*> result;
  for (const auto& link : links_) result.push_back(link.get());
  return result;
}

bool FakeEngine::AwaitLinks(size_t count) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return links_.size() >= count; });
}

size_t FakeEngine::reserved() {
  std::lock_guard lock(mutex_);
  return reserved_.size();
}

absl::StatusOr<Link*> ConnectNow(Engine& engine, const ConnectOptions& options, LinkOwner& owner) {
  auto promise = std::make_shared<std::promise<absl::StatusOr<Link*>>>();
  auto result = promise->get_future();
  Connect(engine, options, owner,
          [promise](absl::StatusOr<Link*> link) { promise->set_value(std::move(link)); });
  return result.get();
}

size_t OpenDescriptors() {
  size_t count = 0;
  DIR* const directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 10'000 * kSlowdown; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

RawClient::RawClient(const std::string& address) {
  const ParsedAddress parsed = ParseAddress(address).value();
  const SocketAddress to = ResolveNumeric(parsed, false).value().front();
  fd_ = socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd_, to.get(), to.bytes) != 0) {
    close(fd_);
    fd_ = -1;
  }
}

RawClient::~RawClient() {
  if (fd_ >= 0) close(fd_);
}

bool RawClient::Send(absl::string_view bytes) {
  return send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

bool RawClient::ReceiveExactly(char* to, size_t bytes) {
  while (bytes > 0) {
    pollfd ready{fd_, POLLIN, 0};
    if (poll(&ready, 1, 10'000) != 1) return false;
    const ssize_t n = recv(fd_, to, bytes, 0);
    if (n <= 0) return false;
    to += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

std::unique_ptr<RawClient::Message> RawClient::Receive() {
  char header[wire::kHelloHeaderBytes];
  if (!ReceiveExactly(header, sizeof(header))) return nullptr;
  const auto decoded = wire::DecodeHelloHeader(absl::string_view(header, sizeof(header)));
  if (!decoded.ok()) return nullptr;
  auto message = std::make_unique<Message>();
  message->type = decoded->type;
  message->body.resize(decoded->body_bytes);
  if (!ReceiveExactly(message->body.data(), message->body.size())) return nullptr;
  return message;
}

std::string RawClient::ReceiveAll() {
  std::string all;
  char byte;
  while (ReceiveExactly(&byte, 1)) all.push_back(byte);
  return all;
}

wire::Hello RawClient::SayHello() {
  wire::Hello hello;
  hello.open_calls_max = 10;
  Send(wire::EncodeHello(wire::HelloType::kHello, hello));
  const auto message = Receive();
  if (message == nullptr || message->type != wire::HelloType::kHelloReply) return {};
  return wire::DecodeHello(message->body).value();
}

absl::Status RawClient::AwaitRefusal() {
  const auto message = Receive();
  if (message == nullptr) return absl::UnknownError("closed without a word");
  if (message->type != wire::HelloType::kRefuse) return absl::UnknownError("not refused");
  absl::Status refusal;
  const absl::Status status = wire::DecodeRefuse(message->body, refusal);
  return status.ok() ? refusal : status;
}

}  // namespace verbena::session
