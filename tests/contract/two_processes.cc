#include "tests/contract/two_processes.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "rpc/base/check.h"

namespace verbena::contract {
namespace {

// Offers, with their descriptors, over a unix socket.
void SendOffer(int socket, const fabric::Offer& offer) {
  VERBENA_CHECK(offer.fds.size() <= 8 && offer.blob.size() <= 4096);
  char byte[4096 + 1] = {'o'};
  memcpy(byte + 1, offer.blob.data(), offer.blob.size());
  iovec part{byte, 1 + offer.blob.size()};
  alignas(cmsghdr) char room[CMSG_SPACE(8 * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!offer.fds.empty()) {
    header.msg_control = room;
    header.msg_controllen = CMSG_SPACE(offer.fds.size() * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(offer.fds.size() * sizeof(int));
    memcpy(CMSG_DATA(c), offer.fds.data(), offer.fds.size() * sizeof(int));
  }
  VERBENA_CHECK(sendmsg(socket, &header, 0) == static_cast<ssize_t>(part.iov_len));
  for (const int fd : offer.fds) close(fd);
}

fabric::Offer ReceiveOffer(int socket) {
  char bytes[4096 + 1];
  iovec part{bytes, sizeof bytes};
  alignas(cmsghdr) char room[CMSG_SPACE(8 * sizeof(int))];
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = room;
  header.msg_controllen = sizeof room;
  const ssize_t n = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  VERBENA_CHECK(n >= 1, "the other process is gone");
  fabric::Offer offer;
  offer.blob.assign(bytes + 1, static_cast<size_t>(n) - 1);
  if (const cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr) {
    offer.fds.resize((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    memcpy(offer.fds.data(), CMSG_DATA(c), offer.fds.size() * sizeof(int));
  }
  return offer;
}

struct Meeting {
  int exchange[2];  // message socket pair, for offers
  int listener = -1;
  sockaddr_un address{};
  socklen_t length = 0;
  int tcp = -1;
  sockaddr_in tcp_address{};
};

Meeting Meet() {
  Meeting m;
  VERBENA_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, m.exchange) == 0);
  // Listening and connecting, not a socket pair: then each end has the other's credentials.
  m.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  m.address.sun_family = AF_UNIX;
  VERBENA_CHECK(bind(m.listener, reinterpret_cast<sockaddr*>(&m.address), sizeof(sa_family_t)) ==
                0);
  m.length = sizeof m.address;
  VERBENA_CHECK(getsockname(m.listener, reinterpret_cast<sockaddr*>(&m.address), &m.length) == 0);
  VERBENA_CHECK(listen(m.listener, 1) == 0);
  m.tcp = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  m.tcp_address.sin_family = AF_INET;
  m.tcp_address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t tcp_length = sizeof m.tcp_address;
  auto* tcp = reinterpret_cast<sockaddr*>(&m.tcp_address);
  VERBENA_CHECK(bind(m.tcp, tcp, tcp_length) == 0 && listen(m.tcp, 1) == 0);
  VERBENA_CHECK(getsockname(m.tcp, tcp, &tcp_length) == 0);
  return m;
}

void Forget(Meeting& m) {
  close(m.listener);
  close(m.tcp);
}

void ServerEnd(const Subject& subject, LinkId link, Meeting& m, End& end) {
  close(m.exchange[0]);
  end.sockets.side = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  VERBENA_CHECK(connect(end.sockets.side, reinterpret_cast<sockaddr*>(&m.address), m.length) == 0);
  end.sockets.stream = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  VERBENA_CHECK(connect(end.sockets.stream, reinterpret_cast<sockaddr*>(&m.tcp_address),
                        sizeof m.tcp_address) == 0);
  Forget(m);
  std::unique_ptr<fabric::Fabric> unused;
  subject.make(unused, end.fabric, end.keep);
  unused.reset();
  fabric::Offer peer = ReceiveOffer(m.exchange[1]);
  auto offer = end.fabric->Prepare(link, fabric::Side::kServer, peer.blob);
  VERBENA_CHECK(offer.ok(), offer.status().ToString());
  SendOffer(m.exchange[1], *offer);
  const absl::Status status = end.fabric->Complete(link, std::move(peer), end.sockets);
  VERBENA_CHECK(status.ok(), status.ToString());
  end.fabric->Start(link);
}

}  // namespace

OtherProcess::OtherProcess(const Subject& subject, LinkId link,
                           const std::function<void(End&)>& body) {
  Meeting m = Meet();
  child_ = fork();
  VERBENA_CHECK(child_ >= 0);
  if (child_ == 0) {
    alarm(60);  // never outlives the test for long
    End end;
    ServerEnd(subject, link, m, end);
    body(end);
    _exit(0);
  }
  close(m.exchange[1]);
  here_.sockets.side = accept4(m.listener, nullptr, nullptr, SOCK_CLOEXEC);
  here_.sockets.stream = accept4(m.tcp, nullptr, nullptr, SOCK_CLOEXEC);
  Forget(m);
  std::unique_ptr<fabric::Fabric> unused;
  subject.make(here_.fabric, unused, here_.keep);
  unused.reset();
  auto offer = here_.fabric->Prepare(link, fabric::Side::kClient, {});
  REQUIRE(offer.ok());
  SendOffer(m.exchange[0], *offer);
  const absl::Status status =
      here_.fabric->Complete(link, ReceiveOffer(m.exchange[0]), here_.sockets);
  close(m.exchange[0]);
  INFO(status.ToString());
  REQUIRE(status.ok());
  here_.fabric->Start(link);
}

OtherProcess::~OtherProcess() { Kill(); }

void OtherProcess::Kill() {
  if (child_ < 0) return;
  kill(child_, SIGKILL);
  waitpid(child_, nullptr, 0);
  child_ = -1;
}

void OtherProcess::Stop() { kill(child_, SIGSTOP); }

}  // namespace verbena::contract
