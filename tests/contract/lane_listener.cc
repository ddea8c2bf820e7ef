#include "tests/contract/lane_listener.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <vector>

#include "rpc/base/check.h"
#include "rpc/fabric/tcp/join_table.h"

namespace verbena::contract {
namespace tcp = fabric::tcp;

LaneListener::LaneListener() {
  auto& address = reinterpret_cast<sockaddr_in&>(address_.storage);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address_.bytes = sizeof address;
  Listen(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

LaneListener::LaneListener(const char* unix_path) {
  auto& address = reinterpret_cast<sockaddr_un&>(address_.storage);
  address.sun_family = AF_UNIX;
  strncpy(address.sun_path, unix_path, sizeof address.sun_path - 1);
  address_.bytes = sizeof address;
  Listen(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

void LaneListener::Listen(int fd) {
  listener_ = fd;
  stop_ = eventfd(0, EFD_CLOEXEC);
  auto* generic = reinterpret_cast<sockaddr*>(&address_.storage);
  VERBENA_CHECK(fd >= 0 && stop_ >= 0 && bind(fd, generic, address_.bytes) == 0 &&
                listen(fd, 64) == 0);
  if (address_.storage.ss_family == AF_INET) address_ = *tcp::LocalOf(fd);
  port_ = tcp::PortOf(address_);
  thread_ = std::thread([this] { Run(); });
}

LaneListener::~LaneListener() {
  const uint64_t one = 1;
  VERBENA_CHECK(write(stop_, &one, sizeof one) == sizeof one);
  thread_.join();
  close(listener_);
  close(stop_);
}

void LaneListener::Run() {
  struct Greeting {
    int fd;
    size_t bytes;
    std::array<std::byte, tcp::kGreetingBytes> data;
  };
  std::vector<Greeting> greetings;
  while (true) {
    std::vector<pollfd> waits = {{stop_, POLLIN, 0}, {listener_, POLLIN, 0}};
    for (const Greeting& greeting : greetings) waits.push_back({greeting.fd, POLLIN, 0});
    poll(waits.data(), waits.size(), -1);
    if (waits[0].revents != 0) break;
    const size_t known = greetings.size();
    if (waits[1].revents != 0) {
      greetings.push_back({accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC), 0, {}});
    }
    for (size_t i = known; i-- > 0;) {
      if (waits[2 + i].revents == 0) continue;
      Greeting& greeting = greetings[i];
      const ssize_t n = recv(greeting.fd, greeting.data.data() + greeting.bytes,
                             tcp::kGreetingBytes - greeting.bytes, 0);
      if (n > 0) greeting.bytes += static_cast<size_t>(n);
      const bool greets = tcp::MayBeGreeting({greeting.data.data(), greeting.bytes});
      if (n > 0 && greets && greeting.bytes < tcp::kGreetingBytes) continue;
      if (n <= 0 || !greets) {
        ++refused_;
        close(greeting.fd);
      } else if (!tcp::JoinTable::Get().Join(tcp::TokenOfGreeting(greeting.data.data()),
                                             greeting.fd)) {
        ++refused_;
      }
      greetings.erase(greetings.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  for (const Greeting& greeting : greetings) close(greeting.fd);
}

}  // namespace verbena::contract
