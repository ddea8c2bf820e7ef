#pragma once
// A tcp fabric, and a peer of it that is only sockets: what the test writes there is what the
// fabric reads.
#include <string>
#include <vector>

#include "rpc/fabric/tcp/bulk_wire.h"
#include "rpc/fabric/tcp/tcp_fabric.h"
#include "tests/contract/fabric_contract.h"
#include "tests/contract/lane_listener.h"
#include "tests/contract/plain_device.h"

namespace verbena::contract {

// Two tcp fabrics for a Pair.
Subject TcpSubject(int socket_buffer_bytes);

class TcpPeer {
 public:
  TcpPeer() : fabric_(fabric::tcp::TcpOptions{listener_.port(), 0}) {}
  ~TcpPeer();

  // A link whose other end is the returned socket. The fabric is its server.
  int Connect(LinkId link);
  // A bulk lane of it; the returned socket is its other end.
  int OpenLane(LinkId link, Lane lane);
  // The token of a lane that the fabric prepared.
  fabric::tcp::Token PrepareLane(LinkId link, Lane lane);

  fabric::tcp::TcpFabric& fabric() { return fabric_; }
  LaneListener& listener() { return listener_; }
  bool Until(absl::FunctionRef<bool()> done);
  void Settle(int polls = 200);
  // So many bytes from a peer's socket, polling the fabric meanwhile; fewer after 10 s.
  std::string Receive(int fd, size_t bytes);

  Recorder events;

 private:
  LaneListener listener_;
  fabric::tcp::TcpFabric fabric_;
  std::vector<int> sockets_;
};

// Sends all of it, on a blocking socket.
void SendBytes(int fd, const std::string& bytes);

}  // namespace verbena::contract
