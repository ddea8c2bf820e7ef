// "system_peer half_client STAGE ADDRESS TRANSPORT" and "half_server STAGE TRANSPORT": one side of
// a handshake that goes as far as the stage, says "there", and then no further. The server prints
// its address first.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/base/unique_fd.h"
#include "rpc/fabric/available.h"
#include "rpc/memory/device.h"
#include "rpc/reactor/service_threads.h"
#include "rpc/session/random.h"
#include "rpc/session/side_socket.h"
#include "rpc/wire/hello.h"
#include "tests/system/peer.h"

namespace verbena::system_test {
namespace {

constexpr LinkId kLink{7};

[[noreturn]] void StayThere() {
  Answer("there");
  for (;;) pause();
}

void SendAll(int fd, const std::string& bytes) {
  VERBENA_CHECK(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
                static_cast<ssize_t>(bytes.size()));
}

std::string ReceiveAll(int fd, size_t bytes) {
  std::string all(bytes, '\0');
  const bool got = bytes == 0 || recv(fd, all.data(), bytes, MSG_WAITALL) == ssize_t(bytes);
  VERBENA_CHECK(got, "the other side is gone");
  return all;
}

std::string Message(int fd, wire::HelloType type) {
  const auto header = wire::DecodeHelloHeader(ReceiveAll(fd, wire::kHelloHeaderBytes));
  VERBENA_CHECK(header.ok() && header->type == type);
  return ReceiveAll(fd, header->body_bytes);
}

class Half {
 public:
  Half(const std::string& stage, const std::string& transport) : stage_(stage) {
    fabric::FabricOptions options;
    options.host = &memory::HostDevice();
    options.post_setup = [](absl::AnyInvocable<void() &&> job) {
      reactor::PostSetup(std::move(job));
    };
    fabrics_ = fabric::MakeFabrics(options);
    for (const auto& fabric : fabrics_) {
      if (fabric->traits().name == transport) fabric_ = fabric.get();
    }
    VERBENA_CHECK(fabric_ != nullptr, "no ", transport);
  }

  void Client(const std::string& address) {
    int port = 0;
    VERBENA_CHECK(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    stream_.Reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    VERBENA_CHECK(connect(stream_.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
    Reached("connected");
    SendAll(stream_.get(), wire::EncodeHello(wire::HelloType::kHello, MyHello()));
    const auto reply = wire::DecodeHello(Message(stream_.get(), wire::HelloType::kHelloReply));
    VERBENA_CHECK(reply.ok(), reply.status().ToString());
    Reached("greeted");
    const auto offer = fabric_->Prepare(kLink, fabric::Side::kClient, "");
    VERBENA_CHECK(offer.ok(), offer.status().ToString());
    if (!offer->fds.empty()) {
      side_ = session::ConnectAside(*reply).value();
      Reached("beside");
    }
    SendOffer(wire::HelloType::kOpen, *offer);
    TakeOffer(wire::HelloType::kOpenReply);
    Reached("opened");
  }

  void Server() {
    const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof at;
    auto* const address = reinterpret_cast<sockaddr*>(&at);
    VERBENA_CHECK(bind(listener.get(), address, length) == 0 && listen(listener.get(), 8) == 0 &&
                  getsockname(listener.get(), address, &length) == 0);
    session::SideListener beside = session::ListenAside("").value();
    Answer(absl::StrCat("127.0.0.1:", ntohs(at.sin_port)));
    stream_.Reset(accept(listener.get(), nullptr, nullptr));
    Message(stream_.get(), wire::HelloType::kHello);
    Reached("connected");
    wire::Hello hello = MyHello();
    hello.side_path = beside.path;
    hello.side_abstract = beside.abstract_name;
    SendAll(stream_.get(), wire::EncodeHello(wire::HelloType::kHelloReply, hello));
    const fabric::Offer theirs = TakeOpen(beside);
    Reached("greeted");
    const auto offer = fabric_->Prepare(kLink, fabric::Side::kServer, theirs.blob);
    VERBENA_CHECK(offer.ok(), offer.status().ToString());
    SendOffer(wire::HelloType::kOpenReply, *offer);
    Reached("opened");
  }

 private:
  void Reached(const char* stage) {
    if (stage == stage_) StayThere();
  }
  wire::Hello MyHello() const {
    wire::Hello hello;
    hello.incarnation = session::RandomToken();
    hello.open_calls_max = 16;
    hello.transports.push_back({std::string(fabric_->traits().name), ""});
    return hello;
  }
  void SendOffer(wire::HelloType type, const fabric::Offer& offer) {
    if (!offer.fds.empty()) VERBENA_CHECK(session::SendDescriptors(side_.get(), offer.fds).ok());
    wire::OpenMessage open;
    open.transport = std::string(fabric_->traits().name);
    open.segment_bytes = fabric_->traits().segment_bytes;
    open.descriptors = static_cast<uint32_t>(offer.fds.size());
    open.blob = offer.blob;
    SendAll(stream_.get(), wire::EncodeOpen(type, open));
  }
  fabric::Offer TakeOffer(wire::HelloType type) {
    const auto open = wire::DecodeOpen(Message(stream_.get(), type));
    VERBENA_CHECK(open.ok() && open->status.ok());
    fabric::Offer offer{open->blob, {}};
    if (open->descriptors == 0) return offer;
    pollfd ready{side_.get(), POLLIN, 0};
    VERBENA_CHECK(poll(&ready, 1, 20'000) == 1);
    offer.fds = session::ReceiveDescriptors(side_.get(), open->descriptors).value();
    return offer;
  }
  fabric::Offer TakeOpen(const session::SideListener& beside) {
    // Who passes no descriptors does not come beside either.
    if (fabric_->traits().name == "shm") {
      pollfd ready[] = {{beside.by_path.get(), POLLIN, 0}, {beside.by_abstract.get(), POLLIN, 0}};
      VERBENA_CHECK(poll(ready, 2, 20'000) >= 1);
      side_.Reset(accept(ready[ready[0].revents != 0 ? 0 : 1].fd, nullptr, nullptr));
      ReceiveAll(side_.get(), sizeof(wire::HelloToken));
    }
    return TakeOffer(wire::HelloType::kOpen);
  }

  const std::string stage_;
  std::vector<std::unique_ptr<fabric::Fabric>> fabrics_;
  fabric::Fabric* fabric_ = nullptr;
  UniqueFd stream_, side_;
};

}  // namespace

int RunHalfClient(const std::vector<std::string>& arguments) {
  Half(arguments[1], arguments[3]).Client(arguments[2]);
  VERBENA_CHECK(false, "no stage ", arguments[1]);
  return 1;
}

int RunHalfServer(const std::vector<std::string>& arguments) {
  Half(arguments[1], arguments[2]).Server();
  VERBENA_CHECK(false, "no stage ", arguments[1]);
  return 1;
}

}  // namespace verbena::system_test
