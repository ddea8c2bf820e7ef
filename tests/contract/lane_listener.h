#pragma once
// Accepts the bulk connections of tcp fabrics in tests that have no listening server: a thread that
// reads each greeting and hands the socket over, as a server's listener does.
#include <atomic>
#include <cstdint>
#include <thread>

#include "rpc/fabric/tcp/sockets.h"

namespace verbena::contract {

class LaneListener {
 public:
  // On 127.0.0.1, any port; or at a unix socket's path.
  LaneListener();
  explicit LaneListener(const char* unix_path);
  ~LaneListener();
  uint16_t port() const { return port_; }
  const fabric::tcp::Address& address() const { return address_; }
  int refused() const { return refused_; }

 private:
  void Listen(int fd);
  void Run();

  int listener_ = -1;
  int stop_ = -1;
  uint16_t port_ = 0;
  fabric::tcp::Address address_;
  std::atomic<int> refused_{0};
  std::thread thread_;
};

}  // namespace verbena::contract
