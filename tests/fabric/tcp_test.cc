// The tcp fabric against peers that keep to nothing.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "rpc/base/slowdown.h"
#include "rpc/fabric/tcp/join_table.h"
#include "rpc/fabric/tcp/sockets.h"
#include "tests/fabric/tcp_peer.h"

namespace verbena::contract {
namespace {

namespace tcp = fabric::tcp;

constexpr LinkId kLink{1}, kOther{2};
constexpr Lane kReader{0, LaneRole::kReader, 1};
constexpr Lane kOwner{0, LaneRole::kOwner, 1};

const std::byte* BytesOf(const std::string& text) {
  return reinterpret_cast<const std::byte*>(text.data());
}

std::string RequestBytes(const tcp::Request& request) {
  std::string bytes(tcp::kRequestBytes, '\0');
  tcp::WriteRequest(request, reinterpret_cast<std::byte*>(bytes.data()));
  return bytes;
}

std::string AnswerBytes(uint32_t sequence, Error status, uint32_t bytes) {
  std::string answer(tcp::kAnswerBytes, '\0');
  tcp::WriteAnswer(sequence, status, bytes, reinterpret_cast<std::byte*>(answer.data()));
  return answer;
}

std::string TrailerBytes(uint32_t sequence, Error status) {
  std::string trailer(tcp::kTrailerBytes, '\0');
  tcp::WriteTrailer(sequence, status, reinterpret_cast<std::byte*>(trailer.data()));
  return trailer;
}

std::string FrameBytes(uint32_t bytes, char fill) {
  std::string frame(bytes, fill);
  const auto length = static_cast<uint16_t>(bytes);
  memcpy(frame.data(), &length, sizeof length);
  return frame;
}

void RequireDown(TcpPeer& peer, LinkId link, absl::StatusCode code, const std::string& words) {
  REQUIRE(peer.Until([&] { return !peer.events.down[link].empty(); }));
  INFO(peer.events.down[link][0].ToString());
  REQUIRE(peer.events.down[link][0].code() == code);
  REQUIRE(std::string(peer.events.down[link][0].message()).find(words) != std::string::npos);
}

fabric::RemoteKey Lease(TcpPeer& peer, LeaseSlot slot, const memory::RegionRef& region) {
  peer.fabric().Lease(slot, kLink, kOwner, region, region->base(), region->bytes());
  REQUIRE(peer.Until([&] { return !peer.events.leased[slot.word()].empty(); }));
  REQUIRE(peer.events.leased[slot.word()][0].error == Error::kOk);
  return peer.events.leased[slot.word()][0].key;
}

TEST_CASE("frames and READs pass sockets that take a few kilobytes at a time", "[tcp]") {
  const Subject subject = TcpSubject(16384);
  Pair pair(subject);
  pair.Connect(kLink);
  pair.OpenLane(kLink, 0, pair.client());
  const memory::RegionRef region = MakeForeign(1 << 20);
  Fill(region->base(), region->bytes(), 7);
  const fabric::RemoteKey key =
      LeaseNow(pair, pair.server(), pair.server_events, {1, 1}, kLink, kOwner, region, 0, 1 << 20);
  std::vector<std::byte> into(1 << 20);
  for (uint32_t i = 0; i < 4; ++i) {
    const fabric::LocalPiece piece{&PlainDevice(), into.data() + (i << 18), 1 << 18};
    pair.client().Read({i, 1}, kLink, kReader, key, i << 18, {&piece, 1});
  }
  for (uint32_t i = 0; i < 6; ++i) {
    REQUIRE(SendFrame(pair.client(), kLink, 65536 - i, i));
    REQUIRE(SendFrame(pair.server(), kLink, 65000 - i, i));
  }
  REQUIRE(pair.Until([&] {
    return pair.server_events.frames_of(kLink) == 6 && pair.client_events.frames_of(kLink) == 6 &&
           pair.client_events.reads.size() == 4;
  }));
  for (uint32_t i = 0; i < 6; ++i) {
    REQUIRE(FrameIs(pair.server_events.frames[kLink][i], 65536 - i, i));
    REQUIRE(FrameIs(pair.client_events.frames[kLink][i], 65000 - i, i));
  }
  REQUIRE(Filled(into.data(), into.size(), 7));
}

TEST_CASE("a frame that comes byte by byte is delivered whole", "[tcp]") {
  TcpPeer peer;
  const int fd = peer.Connect(kLink);
  for (const char byte : FrameBytes(40, 'x') + FrameBytes(9, 'y')) {
    SendBytes(fd, std::string(1, byte));
    peer.Settle(20);
  }
  REQUIRE(peer.Until([&] { return peer.events.frames_of(kLink) == 2; }));
  REQUIRE(peer.events.frames[kLink][0].size() == 40);
  REQUIRE(peer.events.frames[kLink][1].size() == 9);
}

TEST_CASE("a frame that cannot be takes its link down, and no other", "[tcp][hostile]") {
  TcpPeer peer;
  const int fd = peer.Connect(kLink);
  const int other = peer.Connect(kOther);
  SendBytes(fd, FrameBytes(64, 'a') + std::string("\x07\x00garbage", 9));
  RequireDown(peer, kLink, absl::StatusCode::kDataLoss, "a frame of 7 bytes; limits are 8");
  REQUIRE(peer.events.frames_of(kLink) == 1);
  SendBytes(other, FrameBytes(64, 'b'));
  REQUIRE(peer.Until([&] { return peer.events.frames_of(kOther) == 1; }));
}

TEST_CASE("requests that cannot be take their link down", "[tcp][hostile]") {
  for (const auto& [request, words] :
       {std::pair(tcp::Request{5, 64, {}, 0}, "READ 5 requested, expected 0"),
        std::pair(tcp::Request{0, tcp::kChunkBytesMax + 1, {}, 0}, "the limit is 2097152")}) {
    TcpPeer peer;
    peer.Connect(kLink);
    SendBytes(peer.OpenLane(kLink, kOwner), RequestBytes(request));
    RequireDown(peer, kLink, absl::StatusCode::kDataLoss, words);
  }
}

TEST_CASE("a flood of requests takes its link down", "[tcp][hostile]") {
  TcpPeer peer;
  peer.Connect(kLink);
  const int fd = peer.OpenLane(kLink, kOwner);
  const memory::RegionRef region = MakeForeign(tcp::kChunkBytesMax);
  const fabric::RemoteKey key = Lease(peer, {1, 1}, region);
  // Nobody reads the answers. Expect: once the socket is full, no more than the maximum waits.
  for (uint32_t i = 0; i < 400 && peer.events.down[kLink].empty(); ++i) {
    const std::string bytes =
        RequestBytes({i, tcp::kChunkBytesMax, {key.words[0], key.words[1]}, 0});
    (void)!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    peer.Settle(20);
  }
  RequireDown(peer, kLink, absl::StatusCode::kResourceExhausted, "more than 64 READs");
}

TEST_CASE("answers that cannot be take their link down, and end every READ", "[tcp][hostile]") {
  const std::string good = AnswerBytes(0, Error::kOk, 64) + std::string(64, 'd');
  const std::string bad[] = {AnswerBytes(1, Error::kOk, 64),
                             AnswerBytes(0, Error::kOk, 65),
                             AnswerBytes(0, static_cast<Error>(99), 0),
                             AnswerBytes(0, Error::kLinkDown, 0),
                             AnswerBytes(0, Error::kLaneDown, 0),
                             good + TrailerBytes(0, Error::kLaneDown),
                             AnswerBytes(0, Error::kLeaseLost, 64),
                             std::string(tcp::kAnswerBytes, '\xff'),
                             good + TrailerBytes(7, Error::kOk),
                             good + TrailerBytes(0, Error::kOk) + AnswerBytes(2, Error::kOk, 64)};
  for (const std::string& bytes : bad) {
    TcpPeer peer;
    peer.Connect(kLink);
    const int fd = peer.OpenLane(kLink, kReader);
    std::vector<std::byte> into(64);
    const fabric::LocalPiece piece{&PlainDevice(), into.data(), into.size()};
    peer.fabric().Read({1, 1}, kLink, kReader, {}, 0, {&piece, 1});
    peer.fabric().Read({2, 1}, kLink, kReader, {}, 0, {&piece, 1});
    SendBytes(fd, bytes);
    RequireDown(peer, kLink, absl::StatusCode::kDataLoss, "tcp: a");
    REQUIRE(peer.events.reads[ReadSlot{1, 1}.word()].size() == 1);
    REQUIRE(peer.events.reads[ReadSlot{2, 1}.word()] == std::vector<Error>{Error::kLinkDown});
  }
}

TEST_CASE("an answer that nobody asked for takes the link down", "[tcp][hostile]") {
  TcpPeer peer;
  peer.Connect(kLink);
  SendBytes(peer.OpenLane(kLink, kReader), AnswerBytes(0, Error::kLeaseLost, 0));
  RequireDown(peer, kLink, absl::StatusCode::kDataLoss, "not asked for");
}

TEST_CASE("a peer that does not read blocks its own frames only", "[tcp][hostile]") {
  TcpPeer peer;
  const int fd = peer.Connect(kLink);
  const int other = peer.Connect(kOther);
  uint32_t sent = 0;
  while (sent < 2000 && SendFrame(peer.fabric(), kLink, 65536, sent)) {
    ++sent;
    peer.Settle(2);
  }
  REQUIRE(sent < 2000);
  peer.Settle(1000);
  REQUIRE(SendFrame(peer.fabric(), kOther, 100, 1));
  REQUIRE(peer.Receive(other, 100).size() == 100);
  // Blocked, and nothing else to do. Expect: the fabric can sleep.
  while (peer.fabric().Poll(peer.events)) {
  }
  REQUIRE_FALSE(peer.fabric().Arm());
  peer.fabric().Disarm();
  REQUIRE(peer.events.sendable[kLink] == 0);
  // It reads after all. Expect: told so, and nothing is lost.
  for (uint32_t i = 0; i < sent; ++i) {
    const std::string frame = peer.Receive(fd, 65536);
    REQUIRE(FrameIs({BytesOf(frame), frame.size()}, 65536, i));
  }
  REQUIRE(peer.Until([&] { return peer.events.sendable[kLink] == 1; }));
}

TEST_CASE("a revocation does not wait for a reader that does not read", "[tcp][hostile]") {
  TcpPeer peer;
  peer.Connect(kLink);
  const int fd = peer.OpenLane(kLink, kOwner);
  const memory::RegionRef region = MakeForeign(tcp::kChunkBytesMax);
  memset(region->base(), 'o', region->bytes());
  constexpr uint32_t kBytes = 100 * 1000;
  const fabric::RemoteKey key = Lease(peer, {1, 1}, region);
  constexpr uint32_t kRequests = 60;
  for (uint32_t i = 0; i < kRequests; ++i) {
    SendBytes(fd, RequestBytes({i, kBytes, {key.words[0], key.words[1]}, 0}));
  }
  // It answers some, until the sockets are full.
  REQUIRE(peer.Until([fd] {
    int readable = 0;
    REQUIRE(ioctl(fd, FIONREAD, &readable) == 0);
    return readable > static_cast<int>(kBytes);
  }));
  peer.Settle(20000);
  peer.fabric().Revoke({1, 1});
  peer.Settle(1);
  REQUIRE(peer.events.revoked[LeaseSlot{1, 1}.word()] == 1);
  memset(region->base(), 'n', region->bytes());
  // Then it reads. Expect: old bytes where all is well, and no new byte anywhere.
  uint32_t ok = 0, lost = 0;
  for (uint32_t i = 0; i < kRequests; ++i) {
    Error status = Error::kOk;
    const std::string answer = peer.Receive(fd, tcp::kAnswerBytes);
    REQUIRE(tcp::ParseAnswer(BytesOf(answer), i, kBytes, status).ok());
    if (status == Error::kOk) {
      const std::string data = peer.Receive(fd, kBytes);
      const std::string trailer = peer.Receive(fd, tcp::kTrailerBytes);
      REQUIRE(data.find('n') == std::string::npos);
      REQUIRE(tcp::ParseTrailer(BytesOf(trailer), i, status).ok());
      if (status == Error::kOk) REQUIRE(data == std::string(kBytes, 'o'));
    }
    (status == Error::kOk ? ok : lost) += 1;
  }
  REQUIRE(ok > 0);
  REQUIRE(lost > 0);
}

TEST_CASE("bulk lanes let what frames woke run first, but not twice in a row", "[tcp]") {
  TcpPeer peer;
  const int control = peer.Connect(kLink);
  const int bulk = peer.OpenLane(kLink, kOwner);
  const memory::RegionRef region = MakeForeign(64);
  const fabric::RemoteKey key = Lease(peer, {1, 1}, region);
  constexpr size_t kAnswerBytes = tcp::kAnswerBytes + 64 + tcp::kTrailerBytes;
  uint32_t sequence = 0;
  const auto request = [&] {
    SendBytes(bulk, RequestBytes({sequence++, 64, {key.words[0], key.words[1]}, 0}));
  };
  const auto answered_bytes = [bulk] {
    int readable = 0;
    REQUIRE(ioctl(bulk, FIONREAD, &readable) == 0);
    return static_cast<size_t>(readable);
  };
  const auto frames = [&] { return peer.events.frames[kLink].size(); };
  const auto drain = [&](size_t frames_sent) {
    REQUIRE(peer.Until([&] { return frames() == frames_sent; }));
    REQUIRE(peer.Receive(bulk, kAnswerBytes).size() == kAnswerBytes);
  };
  // Both sockets are looked at in each poll after something has come. On a busy machine it comes
  // late, and many polls later they are looked at less often: then once more.
  size_t sent = 0;
  bool seen = false;
  for (int attempt = 0; attempt < 50 && !seen; ++attempt) {
    SendBytes(control, FrameBytes(64, 'f'));
    request();
    drain(++sent);
    peer.Settle(10);
    // A frame and a READ come at once. Expect: the frame in this poll, the answer in the next.
    SendBytes(control, FrameBytes(64, 'f'));
    request();
    peer.Settle(1);
    const bool first = frames() == ++sent;
    if (first) REQUIRE(answered_bytes() == 0);
    // Another frame. Expect: the answer all the same.
    SendBytes(control, FrameBytes(64, 'f'));
    peer.Settle(1);
    seen = first && frames() == ++sent && answered_bytes() == kAnswerBytes;
    if (!seen) sent = 3 * (static_cast<size_t>(attempt) + 1);
    drain(sent);
  }
  REQUIRE(seen);
}

TEST_CASE("connections within a host are not paced, others are as the system has it", "[tcp]") {
  const auto control_of = [](int fd) {
    char name[16] = {};
    socklen_t bytes = sizeof name;
    REQUIRE(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &bytes) == 0);
    return std::string(name);
  };
  tcp::Address any;
  auto& loopback = reinterpret_cast<sockaddr_in&>(any.storage);
  loopback.sin_family = AF_INET;
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  any.bytes = sizeof loopback;
  int listener = tcp::ListenBeside(any).value();
  int fd = tcp::StartConnect(tcp::LocalOf(listener).value()).value();
  CHECK(control_of(fd) == "reno");
  int unconnected = socket(AF_INET, SOCK_STREAM, 0);
  const std::string before = control_of(unconnected);
  tcp::UnpaceWithinHost(unconnected);
  CHECK(control_of(unconnected) == before);
  for (int* end : {&listener, &fd, &unconnected}) tcp::EndSocket(*end);
}

TEST_CASE("a token is good for one connection, and dies with its lane and link", "[tcp][hostile]") {
  TcpPeer peer;
  peer.Connect(kLink);
  int fds[2];
  const auto offered = [&fds] {
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    return fds[0];
  };
  const auto refused = [&](const tcp::Token& token) {
    const bool joined = tcp::JoinTable::Get().Join(token, offered());
    close(fds[1]);
    return !joined;
  };
  REQUIRE(refused(tcp::Token{}));
  tcp::Token token = peer.PrepareLane(kLink, kOwner);
  tcp::Token wrong = token;
  wrong[1] ^= 1;
  REQUIRE(refused(wrong));
  REQUIRE(tcp::JoinTable::Get().Join(token, offered()));
  REQUIRE(refused(token));
  token = peer.PrepareLane(kLink, kReader);
  peer.fabric().BreakLane(kLink, kReader);
  REQUIRE(refused(token));
  token = peer.PrepareLane(kLink, Lane{0, LaneRole::kReader, 2});
  peer.fabric().Close(kLink);
  REQUIRE(refused(token));
}

TEST_CASE("a lease of another link is not read, whatever its key says", "[tcp][hostile]") {
  TcpPeer peer;
  peer.Connect(kLink);
  peer.Connect(kOther);
  peer.OpenLane(kLink, kOwner);
  const int thief = peer.OpenLane(kOther, kOwner);
  const fabric::RemoteKey key = Lease(peer, {1, 1}, MakeForeign(4096));
  SendBytes(thief, RequestBytes({0, 64, {key.words[0], key.words[1]}, 0}) +
                       RequestBytes({1, 64, {~uint64_t{0}, key.words[1]}, 0}));
  REQUIRE(peer.Receive(thief, 2 * tcp::kAnswerBytes) ==
          AnswerBytes(0, Error::kLeaseLost, 0) + AnswerBytes(1, Error::kLeaseLost, 0));
  REQUIRE(peer.events.down[kOther].empty());
}

TEST_CASE("a peer killed in the middle of READs ends them and its link at once", "[tcp][kill]") {
  TcpPeer peer;
  const int fd = peer.Connect(kLink);
  const int bulk = peer.OpenLane(kLink, kReader);
  const pid_t child = fork();
  if (child == 0) {
    // The peer: half an answer, then nothing more.
    SendBytes(bulk, AnswerBytes(0, Error::kOk, 4096) + std::string(1000, 'd'));
    pause();
    _exit(0);
  }
  // Only the child holds the peer's end now.
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  REQUIRE((dup2(nothing, fd) == fd && dup2(nothing, bulk) == bulk));
  close(nothing);
  std::vector<std::byte> into(4096);
  const fabric::LocalPiece piece{&PlainDevice(), into.data(), into.size()};
  for (uint32_t i = 0; i < 3; ++i) peer.fabric().Read({i, 1}, kLink, kReader, {}, 0, {&piece, 1});
  REQUIRE(peer.Until([&] { return into[999] == std::byte{'d'}; }));
  kill(child, SIGKILL);
  const auto killed = std::chrono::steady_clock::now();
  REQUIRE(peer.Until([&] { return !peer.events.down[kLink].empty(); }));
  REQUIRE(std::chrono::steady_clock::now() - killed < std::chrono::milliseconds(1000) * kSlowdown);
  REQUIRE(peer.events.down[kLink][0].code() == absl::StatusCode::kUnavailable);
  for (uint32_t i = 0; i < 3; ++i) {
    REQUIRE(peer.events.reads[ReadSlot{i, 1}.word()].size() == 1);
    REQUIRE(peer.events.reads[ReadSlot{i, 1}.word()][0] != Error::kOk);
  }
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace verbena::contract
