#include "tests/fabric/tcp_peer.h"

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>

#include "rpc/base/check.h"

namespace verbena::contract {
namespace tcp = fabric::tcp;

Subject TcpSubject(int socket_buffer_bytes) {
  Subject subject;
  subject.name = "tcp";
  subject.make = [socket_buffer_bytes](auto& client, auto& server, std::shared_ptr<void>& keep) {
    auto listener = std::make_shared<LaneListener>();
    const tcp::TcpOptions options{listener->port(), socket_buffer_bytes};
    client = std::make_unique<tcp::TcpFabric>(options);
    server = std::make_unique<tcp::TcpFabric>(options);
    keep = listener;
  };
  return subject;
}

TcpPeer::~TcpPeer() {
  for (const int fd : sockets_) close(fd);
}

int TcpPeer::Connect(LinkId link) {
  SocketPair pair = MakeSockets(false);
  VERBENA_CHECK(fabric_.Prepare(link, fabric::Side::kServer, {}).ok());
  fabric::Offer offer;
  offer.blob = tcp::LinkOfferBlob();
  VERBENA_CHECK(fabric_.Complete(link, std::move(offer), pair.server).ok());
  VERBENA_CHECK(pair.server.stream < 0);
  fabric_.Start(link);
  sockets_.push_back(pair.client.stream);
  return pair.client.stream;
}

tcp::Token TcpPeer::PrepareLane(LinkId link, Lane lane) {
  const auto offer = fabric_.PrepareLane(link, lane);
  VERBENA_CHECK(offer.ok());
  return tcp::ParseLaneOffer(offer->blob)->token;
}

int TcpPeer::OpenLane(LinkId link, Lane lane) {
  const tcp::Token token = PrepareLane(link, lane);
  fabric::Offer mine;
  mine.blob = tcp::LaneOfferBlob({0, lane.index, lane.generation, {}});
  VERBENA_CHECK(fabric_.CompleteLane(link, lane, std::move(mine)).ok());
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const tcp::Address to = listener_.address();
  VERBENA_CHECK(connect(fd, reinterpret_cast<const sockaddr*>(&to.storage), to.bytes) == 0);
  std::string greeting(tcp::kGreetingBytes, '\0');
  tcp::WriteGreeting(token, reinterpret_cast<std::byte*>(greeting.data()));
  SendBytes(fd, greeting);
  sockets_.push_back(fd);
  return fd;
}

bool TcpPeer::Until(absl::FunctionRef<bool()> done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!done() && std::chrono::steady_clock::now() < end) fabric_.Poll(events);
  return done();
}

void TcpPeer::Settle(int polls) {
  for (int i = 0; i < polls; ++i) fabric_.Poll(events);
}

std::string TcpPeer::Receive(int fd, size_t bytes) {
  std::string received(bytes, '\0');
  size_t got = 0;
  Until([&] {
    const ssize_t n = recv(fd, received.data() + got, bytes - got, MSG_DONTWAIT);
    if (n > 0) got += static_cast<size_t>(n);
    return got == bytes;
  });
  received.resize(got);
  return received;
}

void SendBytes(int fd, const std::string& bytes) {
  VERBENA_CHECK(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
                static_cast<ssize_t>(bytes.size()));
}

}  // namespace verbena::contract
