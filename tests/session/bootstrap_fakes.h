#pragma once
// What handshakes are tested with: transports and engines that do as they are told, and count what
// they hold.
#include <sys/stat.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rpc/reactor/reactor.h"
#include "rpc/session/bootstrap.h"
#include "rpc/wire/hello.h"

namespace verbena::session {

struct FakeFabricOptions {
  std::string name = "fake";
  bool passes_descriptors = false;
  bool takes_stream = false;
  uint32_t segment_bytes = 8192;
};

// What a fabric is told to fail with.
struct FakeFaults {
  absl::Status prepare_client, prepare_server, complete_client, complete_server;
};

class FakeFabric final : public fabric::Fabric {
 public:
  explicit FakeFabric(const FakeFabricOptions& options);
  ~FakeFabric() override;
  const fabric::Traits& traits() const override { return traits_; }
  absl::StatusOr<fabric::Offer> Prepare(LinkId link, fabric::Side side,
                                        absl::string_view peer) override;
  absl::Status Complete(LinkId link, fabric::Offer peer, fabric::Sockets& sockets) override;
  void Abandon(LinkId link) override;
  std::string ReadWays(LinkId) const override { return "by hand"; }
  absl::StatusOr<fabric::Offer> PrepareLane(LinkId, Lane) override { return fabric::Offer(); }
  absl::Status CompleteLane(LinkId, Lane, fabric::Offer) override { return absl::OkStatus(); }
  void Start(LinkId) override {}
  bool AcquireFrame(LinkId, fabric::OutFrame&) override { return false; }
  void Send(LinkId, absl::Span<const fabric::OutFrame>) override {}
  void Discard(LinkId, const fabric::OutFrame&) override {}
  void Lease(LeaseSlot, LinkId, Lane, const memory::RegionRef&, const std::byte*, size_t) override {
  }
  void Revoke(LeaseSlot) override {}
  void Read(ReadSlot, LinkId, Lane, const fabric::RemoteKey&, uint64_t,
            absl::Span<const fabric::LocalPiece>) override {}
  void BreakLane(LinkId, Lane) override {}
  void Close(LinkId link) override { Abandon(link); }
  bool Poll(fabric::EventSink&) override { return false; }
  bool HasLater() const override { return false; }
  bool Arm() override { return false; }
  void Disarm() override {}
  int fd() const override { return -1; }

  // Links prepared or completed, and not abandoned or closed.
  size_t links();
  // The peer's descriptor as it came, by its inode; 0 = none came.
  uint64_t descriptor_of(LinkId link);

  FakeFaults faults;
  bool prepared_on_wrong_thread = false;
  std::atomic<int> prepares{0};

 private:
  struct State {
    fabric::Side side = fabric::Side::kClient;
    int stream = -1, side_socket = -1;
    uint64_t descriptor = 0;
  };
  void CloseState(State& state);
  const FakeFabricOptions options_;
  fabric::Traits traits_;
  std::mutex mutex_;
  std::map<LinkId, State> links_;
};

class FakeLink final : public Link {
 public:
  explicit FakeLink(LinkSetup s) : setup(std::move(s)) { info_ = setup.info; }
  ~FakeLink() = default;
  LinkSetup setup;
  LinkOwner* owner = nullptr;
  RequestSink* sink = nullptr;
};

// Waits until what the service threads do now is done: they may still be on their way out of a
// reactor's seat, and a test destroys reactors, which a process never does.
void SettleServiceThreads();

class FakeEngine final : public Engine {
 public:
  explicit FakeEngine(std::vector<FakeFabricOptions> fabrics);
  ~FakeEngine() override;
  reactor::Reactor& reactor() override { return *reactor_; }
  fabric::Fabric* FindFabric(absl::string_view name) override { return Fake(name); }
  absl::Span<const std::unique_ptr<fabric::Fabric>> fabrics() const override { return fabrics_; }
  absl::StatusOr<LinkId> ReserveLink() override;
  void ReturnLink(LinkId id) override;
  void Adopt(const LinkSetup& setup, LinkOwner* owner, RequestSink* sink,
             absl::AnyInvocable<void(absl::StatusOr<Link*>) &&> proved) override;
  std::vector<Link*> Links() override { return {}; }
  Counters counters() const override { return {}; }

  FakeFabric* Fake(absl::string_view name);
  // Ends a link as its peer's death would.
  void CloseLink(FakeLink& link);
  void CloseLinks();
  std::vector<FakeLink*> links();
  // Waits until so many links are up.
  bool AwaitLinks(size_t count);
  size_t reserved();

  std::map<std::string, absl::Status> not_proved;  // by transport
  uint32_t links_max = 1000;
  bool adopted_outside_seat = false;

 private:
  std::unique_ptr<reactor::Reactor> reactor_;
  std::vector<std::unique_ptr<fabric::Fabric>> fabrics_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t next_id_ = 0;
  std::map<LinkId, bool> reserved_;
  std::vector<std::unique_ptr<FakeLink>> links_;
};

class FakeOwner final : public LinkOwner {
 public:
  void OnLinkUp(Link&) override { up.fetch_add(1); }
  void OnLinkDown(Link*, const absl::Status&) override { down.fetch_add(1); }
  void OnGoAway(Link&) override {}
  std::atomic<int> up{0}, down{0};
};

class FakeSink final : public RequestSink {
 public:
  void* Resolve(absl::string_view) override { return nullptr; }
  uint64_t RequestBytesMax(void*) override { return 0; }
  ServerCall* OnRequest(Link&, RequestView&) override { return nullptr; }
  void OnLinkUp(Link&) override { up.fetch_add(1); }
  void OnLinkDown(Link&, const absl::Status&) override { down.fetch_add(1); }
  std::atomic<int> up{0}, down{0};
};

// Connect(), waited for.
absl::StatusOr<Link*> ConnectNow(Engine& engine, const ConnectOptions& options, LinkOwner& owner);

// Descriptors that this process has open.
size_t OpenDescriptors();
// Until `condition` holds, for 10 s at most.
bool Eventually(const std::function<bool()>& condition);

// A client that speaks the handshake byte by byte.
class RawClient {
 public:
  explicit RawClient(const std::string& address);  // "127.0.0.1:port" or "[::]:port"
  ~RawClient();
  bool Send(absl::string_view bytes);
  // A whole message, or nothing: the server closed first.
  struct Message {
    wire::HelloType type = wire::HelloType::kHello;
    std::string body;
  };
  std::unique_ptr<Message> Receive();
  // All that comes until the end.
  std::string ReceiveAll();
  // HELLO, and what the reply says.
  wire::Hello SayHello();
  absl::Status AwaitRefusal();
  int fd() const { return fd_; }

 private:
  bool ReceiveExactly(char* to, size_t bytes);
  int fd_ = -1;
};

}  // namespace verbena::session
