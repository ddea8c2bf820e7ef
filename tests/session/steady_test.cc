// Small calls in the steady state allocate nothing, on either side. Over a fabric that hands
// buffers from end to end.
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <new>

#include "absl/time/clock.h"
#include "rpc/reactor/reactor.h"
#include "rpc/session/engine.h"
#include "tests/catch.h"
#include "tests/session/allocations.h"

namespace verbena::session {
namespace {

// One end of a link within one thread; the other end is `peer`.
class LoopFabric final : public fabric::Fabric {
 public:
  LoopFabric() {
    traits_.name = "loop";
    traits_.segment_bytes = 8 * 1024;
    traits_.slot_bytes = 64;
    traits_.window_slots = 256;
    traits_.publish_bytes = 512;
    traits_.read_chunk_bytes = 256 * 1024;
    traits_.reads_in_flight = 4;
    for (uint32_t i = 0; i < kFrames; ++i) free_[free_count_++] = i;
  }
  const fabric::Traits& traits() const override { return traits_; }
  absl::StatusOr<fabric::Offer> Prepare(LinkId, fabric::Side, absl::string_view) override {
    return fabric::Offer{};
  }
  absl::Status Complete(LinkId, fabric::Offer, fabric::Sockets&) override {
    return absl::OkStatus();
  }
  void Abandon(LinkId) override {}
  absl::StatusOr<fabric::Offer> PrepareLane(LinkId, Lane) override { return fabric::Offer{}; }
  absl::Status CompleteLane(LinkId, Lane, fabric::Offer) override { return absl::OkStatus(); }
  void Start(LinkId link) override { link_ = link; }
  bool AcquireFrame(LinkId, fabric::OutFrame& frame) override {
    if (free_count_ == 0) {
      starved_ = true;
      return false;
    }
    const uint32_t index = free_[--free_count_];
    frame = {buffers_[index].data(), 8 * 1024, 0, index};
    return true;
  }
  void Send(LinkId, absl::Span<const fabric::OutFrame> frames) override {
    for (const fabric::OutFrame& frame : frames) sent_[sent_end_++ % kFrames] = frame;
  }
  void Discard(LinkId, const fabric::OutFrame& frame) override {
    free_[free_count_++] = frame.token;
  }
  void Lease(LeaseSlot slot, LinkId, Lane, const memory::RegionRef&, const std::byte* data,
             size_t) override {
    leased_.push_back({slot, data});
  }
  void Revoke(LeaseSlot slot) override { revoked_.push_back(slot); }
  void Read(ReadSlot slot, LinkId, Lane, const fabric::RemoteKey& key, uint64_t offset,
            absl::Span<const fabric::LocalPiece> pieces) override {
    const std::byte* from = reinterpret_cast<const std::byte*>(key.words[0]) + offset;
    for (const fabric::LocalPiece& piece : pieces) {
      std::memcpy(piece.data, from, piece.bytes);
      from += piece.bytes;
    }
    read_.push_back(slot);
  }
  void BreakLane(LinkId, Lane) override {}
  void Close(LinkId) override { closed_ = peer->closed_ = true; }
  bool Poll(fabric::EventSink& sink) override {
    bool any = peer->sent_begin_ != peer->sent_end_;
    while (peer->sent_begin_ != peer->sent_end_) {
      const fabric::OutFrame frame = peer->sent_[peer->sent_begin_++ % kFrames];
      sink.OnFrame(link_, {frame.data, frame.bytes});
      peer->free_[peer->free_count_++] = frame.token;
    }
    if (starved_ && free_count_ != 0) {
      starved_ = false;
      sink.OnSendable(link_);
    }
    for (; !leased_.empty(); leased_.pop_front()) {
      fabric::RemoteKey key;
      key.words[0] = reinterpret_cast<uint64_t>(leased_.front().second);
      sink.OnLeased(leased_.front().first, Error::kOk, key);
    }
    for (; !revoked_.empty(); revoked_.pop_front()) sink.OnRevoked(revoked_.front());
    for (; !read_.empty(); read_.pop_front()) sink.OnReadDone(read_.front(), Error::kOk);
    if (closed_ && !down_) {
      down_ = true;
      sink.OnLinkDown(link_, absl::UnavailableError("closed"));
    }
    return any;
  }
  bool HasLater() const override { return false; }
  bool Arm() override { return false; }
  void Disarm() override {}
  int fd() const override { return -1; }

  LoopFabric* peer = nullptr;

 private:
  static constexpr uint32_t kFrames = 16;
  fabric::Traits traits_;
  LinkId link_ = LinkId::kNone;
  std::array<std::array<std::byte, 8 * 1024>, kFrames> buffers_;
  std::array<uint32_t, kFrames> free_;
  uint32_t free_count_ = 0;
  std::array<fabric::OutFrame, kFrames> sent_;
  uint32_t sent_begin_ = 0, sent_end_ = 0;
  bool starved_ = false, closed_ = false, down_ = false;
  std::deque<std::pair<LeaseSlot, const std::byte*>> leased_;
  std::deque<LeaseSlot> revoked_;
  std::deque<ReadSlot> read_;
};

class Echo final : public RequestSink {
 public:
  class Call final : public ServerCall {
   public:
    void OnCancel(const absl::Status&, bool) override {}
    void OnReplyLeasesEnded() override { sink->free.push_back(this); }
    Echo* sink = nullptr;
  };
  Echo() {
    for (Call& call : calls) {
      call.sink = this;
      free.push_back(&call);
    }
  }
  void* Resolve(absl::string_view) override { return this; }
  uint64_t RequestBytesMax(void*) override { return 0; }
  ServerCall* OnRequest(Link& link, RequestView& request) override {
    Call* const call = free.back();
    free.pop_back();
    Outgoing reply;
    reply.body = request.body;
    reply.metadata = request.metadata;
    link.Reply(*call, absl::OkStatus(), reply);
    return call;
  }
  void OnLinkUp(Link&) override { up = true; }
  void OnLinkDown(Link&, const absl::Status&) override { up = false; }
  std::array<Call, 256> calls;
  std::vector<Call*> free;
  bool up = false;
};

class Owner final : public LinkOwner {
 public:
  void OnLinkUp(Link& up) override { link = &up; }
  void OnLinkDown(Link*, const absl::Status&) override { link = nullptr; }
  void OnGoAway(Link&) override {}
  Link* link = nullptr;
};

class Caller final : public ClientCall {
 public:
  void Go() {
    Outgoing request;
    request.body = body;
    request.metadata = metadata;
    deadline_ns = link->engine().reactor().now_ns() + 1'000'000'000;
    link->StartCall(*this, request);
  }
  void OnReply(ReplyView& reply) override {
    if (!reply.status->ok()) return;  // too few replies, then
    bytes += reply.body.size();
    ++replies;
    if (replies < target) Go();
  }
  Link* link = nullptr;
  absl::Span<const std::byte> body;
  MetadataView metadata;
  uint64_t replies = 0, target = 0, bytes = 0;
};

struct World {
  World() {
    reactor::ReactorOptions options;
    options.thread = false;
    options.pin = false;
    for (int i = 0; i < 2; ++i) {
      reactors[i] = *reactor::Reactor::Create(options);
      auto fabric = std::make_unique<LoopFabric>();
      fabrics[i] = fabric.get();
      std::vector<std::unique_ptr<fabric::Fabric>> list;
      list.push_back(std::move(fabric));
      engines[i] = Engine::Create(*reactors[i], std::move(list), {});
    }
    fabrics[0]->peer = fabrics[1];
    fabrics[1]->peer = fabrics[0];
    for (int i = 1; i >= 0; --i) {
      LinkSetup setup;
      setup.fabric = fabrics[i];
      setup.id = *engines[i]->ReserveLink();
      setup.side = i == 0 ? fabric::Side::kClient : fabric::Side::kServer;
      REQUIRE(reactors[i]->TryEnter());
      engines[i]->Adopt(setup, i == 0 ? &owner : nullptr, i == 0 ? nullptr : &echo,
                        [](absl::StatusOr<Link*>) {});
      reactors[i]->Leave();
    }
    // The memory of the links' proofs is made on another thread.
    const absl::Time late = absl::Now() + absl::Seconds(10);
    while ((owner.link == nullptr || !echo.up) && absl::Now() < late) Tick();
    REQUIRE(owner.link != nullptr);
    REQUIRE(echo.up);
  }
  ~World() {
    REQUIRE(reactors[0]->TryEnter());
    owner.link->Close(absl::CancelledError("over"));
    reactors[0]->Leave();
    for (int i = 0; i < 1'000 && (owner.link != nullptr || echo.up); ++i) Tick();
  }
  void Tick() {
    reactors[0]->Tick();
    reactors[1]->Tick();
  }
  std::unique_ptr<reactor::Reactor> reactors[2];
  LoopFabric* fabrics[2];
  std::unique_ptr<Engine> engines[2];
  Echo echo;
  Owner owner;
};

TEST_CASE("a small call allocates nothing in the steady state", "[session][steady]") {
  const int outstanding = GENERATE(1, 64);
  const bool with_metadata = GENERATE(false, true);
  World world;
  const std::array<std::byte, 34> body{};
  const std::pair<absl::string_view, absl::string_view> metadata[] = {{"x-trace", "0123456789"}};
  std::vector<Caller> callers(static_cast<size_t>(outstanding));
  const uint32_t method = MethodId("/steady/Echo");
  const auto run = [&](uint64_t calls) {
    REQUIRE(world.reactors[0]->TryEnter());
    for (Caller& caller : callers) {
      caller.link = world.owner.link;
      caller.method = method;
      caller.body = body;
      if (with_metadata) caller.metadata = metadata;
      caller.target = caller.replies + calls;
      caller.Go();
    }
    world.reactors[0]->Leave();
    for (Caller& caller : callers) {
      for (int i = 0; i < 1'000'000 && caller.replies < caller.target; ++i) world.Tick();
      REQUIRE(caller.replies == caller.target);
    }
  };
  run(2'000);
  const uint64_t before = AllocationsSoFar();
  run(10'000);
  CHECK(AllocationsSoFar() == before);
  CHECK(world.engines[0]->counters().messages_sent >= 12'000);
}

}  // namespace
}  // namespace verbena::session
