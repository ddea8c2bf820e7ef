#include "tests/contract/fabric_contract.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "rpc/base/check.h"
#include "rpc/base/slowdown.h"
#include "tests/contract/plain_device.h"

namespace verbena::contract {

void Recorder::OnFrame(LinkId link, absl::Span<const std::byte> frame) {
  CheckAlive(link);
  ++frame_count;
  if (on_frame) on_frame(link, frame);
  if (keep_frames) frames[link].emplace_back(frame.begin(), frame.end());
}

void Recorder::OnLeased(LeaseSlot slot, Error error, const fabric::RemoteKey& key) {
  leased[slot.word()].push_back({error, key});
}

void Recorder::OnReadDone(ReadSlot slot, Error error) { reads[slot.word()].push_back(error); }

void Recorder::OnLaneDown(LinkId link, Lane lane, Error) {
  CheckAlive(link);
  lanes_down[link].push_back(lane);
  reads_after_lane_down = reads.size();
}

void Recorder::OnLinkEnding(LinkId link, const absl::Status& cause) {
  CheckAlive(link);
  CHECK(ending[link].size() <= down[link].size());  // numbers are used again
  ending[link].push_back(cause);
}

void Recorder::OnLinkDown(LinkId link, const absl::Status& cause) {
  CheckAlive(link);
  down[link].push_back(cause);
}

memory::RegionRef MakeSlab(size_t bytes) { return MakeMemfdRegion(bytes); }
memory::RegionRef MakeForeign(size_t bytes) { return MakeHeapRegion(bytes); }

SocketPair MakeSockets(bool side) {
  SocketPair pair;
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  VERBENA_CHECK(bind(listener, generic, length) == 0 && listen(listener, 8) == 0);
  VERBENA_CHECK(getsockname(listener, generic, &length) == 0);
  pair.client.stream = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  VERBENA_CHECK(connect(pair.client.stream, generic, length) == 0);
  pair.server.stream = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  VERBENA_CHECK(pair.server.stream >= 0);
  close(listener);
  if (side) {
    int fds[2];
    VERBENA_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    pair.client.side = fds[0];
    pair.server.side = fds[1];
  }
  return pair;
}

void CloseSockets(fabric::Sockets& sockets) {
  if (sockets.stream >= 0) close(sockets.stream);
  if (sockets.side >= 0) close(sockets.side);
  sockets = fabric::Sockets();
}

absl::Status JoinLink(fabric::Fabric& client, LinkId client_link, fabric::Fabric& server,
                      LinkId server_link, SocketPair& sockets) {
  auto from_client = client.Prepare(client_link, fabric::Side::kClient, {});
  if (!from_client.ok()) return from_client.status();
  auto from_server = server.Prepare(server_link, fabric::Side::kServer, from_client->blob);
  if (!from_server.ok()) return from_server.status();
  auto status = server.Complete(server_link, *std::move(from_client), sockets.server);
  if (!status.ok()) return status;
  return client.Complete(client_link, *std::move(from_server), sockets.client);
}

Pair::Pair(const Subject& subject) : subject_(subject) { subject.make(client_, server_, keep_); }

Pair::~Pair() {
  client_.reset();
  server_.reset();
  for (fabric::Sockets& sockets : sockets_) CloseSockets(sockets);
}

void Pair::Connect(LinkId link) {
  SocketPair sockets = MakeSockets(subject_.one_host);
  const absl::Status status = JoinLink(*client_, link, *server_, link, sockets);
  INFO(status.ToString());
  REQUIRE(status.ok());
  sockets_.push_back(sockets.client);
  sockets_.push_back(sockets.server);
  client_->Start(link);
  server_->Start(link);
}

void Pair::OpenLane(LinkId link, uint8_t index, fabric::Fabric& reader, uint32_t generation) {
  if (!client_->traits().prepares_lanes) return;
  fabric::Fabric& owner = &reader == client_.get() ? *server_ : *client_;
  const Lane near{index, LaneRole::kReader, generation};
  const Lane far{index, LaneRole::kOwner, generation};
  auto from_owner = owner.PrepareLane(link, far);
  REQUIRE(from_owner.ok());
  auto from_reader = reader.PrepareLane(link, near);
  REQUIRE(from_reader.ok());
  REQUIRE(owner.CompleteLane(link, far, *std::move(from_reader)).ok());
  REQUIRE(reader.CompleteLane(link, near, *std::move(from_owner)).ok());
}

void Pair::PollOnce() {
  if (client_ != nullptr) client_->Poll(client_events);
  if (server_ != nullptr) server_->Poll(server_events);
}

bool Pair::Until(absl::FunctionRef<bool()> done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10) * kSlowdown;
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return done();
    for (int i = 0; i < 16; ++i) PollOnce();
  }
  return true;
}

void Pair::Settle(std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) PollOnce();
}

void Fill(std::byte* data, size_t bytes, uint32_t seed) {
  for (size_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<std::byte>((i * 131 + seed * 2654435761u) >> 3);
  }
}

bool Filled(const std::byte* data, size_t bytes, uint32_t seed) {
  for (size_t i = 0; i < bytes; ++i) {
    if (data[i] != static_cast<std::byte>((i * 131 + seed * 2654435761u) >> 3)) return false;
  }
  return true;
}

bool SendFrame(fabric::Fabric& fabric, LinkId link, uint32_t bytes, uint32_t seed) {
  fabric::OutFrame frame;
  if (!fabric.AcquireFrame(link, frame)) return false;
  Fill(frame.data + 2, bytes - 2, seed);
  frame.bytes = bytes;
  fabric.Send(link, {&frame, 1});
  return true;
}

bool FrameIs(absl::Span<const std::byte> frame, uint32_t bytes, uint32_t seed) {
  if (frame.size() != bytes) return false;
  const auto length = static_cast<uint16_t>(bytes);
  return memcmp(frame.data(), &length, 2) == 0 && Filled(frame.data() + 2, bytes - 2, seed);
}

fabric::RemoteKey LeaseNow(Pair& pair, fabric::Fabric& owner, Recorder& events, LeaseSlot slot,
                           LinkId link, Lane lane, const memory::RegionRef& region, size_t offset,
                           size_t bytes) {
  const size_t before = events.leased[slot.word()].size();
  owner.Lease(slot, link, lane, region, region->base() + offset, bytes);
  REQUIRE(events.leased[slot.word()].size() == before);  // never inline
  REQUIRE(pair.Until([&] { return events.leased[slot.word()].size() > before; }));
  REQUIRE(events.leased[slot.word()].back().error == Error::kOk);
  return events.leased[slot.word()].back().key;
}

}  // namespace verbena::contract
