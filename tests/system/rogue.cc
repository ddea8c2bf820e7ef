#include "tests/system/rogue.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "rpc/fabric/available.h"
#include "rpc/memory/device.h"
#include "rpc/reactor/reactors.h"
#include "rpc/reactor/service_threads.h"
#include "rpc/session/bootstrap.h"
#include "rpc/session/engines.h"
#include "rpc/session/link_impl.h"
#include "rpc/session/random.h"
#include "rpc/session/seat_job.h"
#include "rpc/session/side_socket.h"
#include "rpc/wire/control.h"
#include "rpc/wire/hello.h"
#include "tests/catch.h"
#include "tests/system/process.h"

namespace verbena::system_test {
namespace {

constexpr LinkId kLink{7};

void SendAll(int fd, const std::string& bytes) {
  REQUIRE(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
}

std::string ReceiveAll(int fd, size_t bytes) {
  std::string all(bytes, '\0');
  if (bytes != 0) {
    REQUIRE(recv(fd, all.data(), bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes));
  }
  return all;
}

std::string Message(int fd, wire::HelloType type) {
  const auto header = wire::DecodeHelloHeader(ReceiveAll(fd, wire::kHelloHeaderBytes));
  REQUIRE(header.ok());
  REQUIRE(header->type == type);
  return ReceiveAll(fd, header->body_bytes);
}

}  // namespace

UniqueFd ConnectTo(const std::string& address) {
  int port = 0;
  REQUIRE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
  return fd;
}

Flooder::Flooder(const std::string& address, const std::string& transport) {
  fabric::FabricOptions options;
  options.host = &memory::HostDevice();
  options.post_setup = [](absl::AnyInvocable<void() &&> job) {
    reactor::PostSetup(std::move(job));
  };
  fabrics_ = fabric::MakeFabrics(options);
  for (const auto& fabric : fabrics_) {
    if (fabric->traits().name == transport) fabric_ = fabric.get();
  }
  REQUIRE(fabric_ != nullptr);
  Open(address);
}

Flooder::~Flooder() {
  fabric_->Close(kLink);
  Within(absl::Seconds(5), [this] {
    fabric_->Poll(*this);
    return down_;
  });
}

void Flooder::Open(const std::string& address) {
  stream_ = ConnectTo(address);
  wire::Hello hello;
  hello.incarnation = session::RandomToken();
  hello.open_calls_max = 16;
  hello.transports.push_back({std::string(fabric_->traits().name), ""});
  SendAll(stream_.get(), wire::EncodeHello(wire::HelloType::kHello, hello));
  const auto reply = wire::DecodeHello(Message(stream_.get(), wire::HelloType::kHelloReply));
  REQUIRE(reply.ok());
  absl::StatusOr<fabric::Offer> offer = fabric_->Prepare(kLink, fabric::Side::kClient, "");
  REQUIRE(offer.ok());
  UniqueFd side;
  if (!offer->fds.empty()) {
    side = session::ConnectAside(*reply).value();
    REQUIRE(session::SendDescriptors(side.get(), offer->fds).ok());
    for (const int fd : offer->fds) close(fd);
  }
  wire::OpenMessage open;
  open.transport = std::string(fabric_->traits().name);
  open.segment_bytes = fabric_->traits().segment_bytes;
  open.descriptors = static_cast<uint32_t>(offer->fds.size());
  open.blob = offer->blob;
  SendAll(stream_.get(), wire::EncodeOpen(wire::HelloType::kOpen, open));
  const auto opened = wire::DecodeOpen(Message(stream_.get(), wire::HelloType::kOpenReply));
  REQUIRE(opened.ok());
  REQUIRE(opened->status.ok());
  fabric::Offer theirs{opened->blob, {}};
  if (opened->descriptors > 0) {
    theirs.fds = session::ReceiveDescriptors(side.get(), opened->descriptors).value();
  }
  REQUIRE(fcntl(stream_.get(), F_SETFL, O_NONBLOCK) == 0);
  fabric::Sockets sockets{stream_.Release(), side.Release()};
  REQUIRE(fabric_->Complete(kLink, std::move(theirs), sockets).ok());
  stream_.Reset(sockets.stream);
  fabric_->Start(kLink);
}

void Flooder::SendFrame(bool ready, uint32_t bytes) {
  fabric::OutFrame frame;
  if (!fabric_->AcquireFrame(kLink, frame)) return;
  frame.bytes = std::min(bytes, frame.capacity);
  std::memset(frame.data, 0, frame.bytes);
  wire::WriteFrameHeader(frame.data, frame.bytes, fabric_->traits().window_slots);
  std::byte* record = frame.data + wire::kFrameHeaderBytes;
  uint32_t left = frame.bytes - wire::kFrameHeaderBytes;
  if (ready) {
    wire::WriteBare(wire::RecordType::kReady, 0, record);
    record += wire::kRecordHeaderBytes;
    left -= wire::kRecordHeaderBytes;
  }
  wire::Store(record,
              wire::RecordHeader{wire::RecordType::kPadding, 0, static_cast<uint16_t>(left), 0});
  fabric_->Send(kLink, {&frame, 1});
}

bool Flooder::Flood(absl::Duration timeout) {
  // As many slots as a frame can take where slots are small, as many frames as possible else.
  const uint32_t bytes = fabric_->traits().slot_bytes > 4096 ? 64 : fabric_->traits().segment_bytes;
  SendFrame(true, 64);
  const absl::Time until = absl::Now() + timeout;
  while (!down_ && absl::Now() < until) {
    for (int i = 0; i < 64; ++i) SendFrame(false, bytes);
    fabric_->Poll(*this);
  }
  return down_;
}

namespace {

class Owner final : public session::LinkOwner {
 public:
  void OnLinkUp(session::Link&) override {}
  void OnLinkDown(session::Link*, const absl::Status&) override { down = true; }
  void OnGoAway(session::Link&) override {}
  std::atomic<session::Link*> link{nullptr};
  std::atomic<bool> down{false};
};

void WriteRandom(session::LinkImpl& link, std::mt19937& random) {
  for (int i = 0; i < 8; ++i) {
    const auto bytes = static_cast<uint32_t>(8 * (1 + random() % 64));
    std::byte* const to = link.writer().Reserve(bytes, session::SendClass::kData);
    if (to == nullptr) return;
    for (uint32_t at = 0; at < bytes; ++at) to[at] = static_cast<std::byte>(random());
    // Most look like records, so that more is looked at than their lengths.
    if (random() % 8 != 0) {
      wire::Store(to,
                  wire::RecordHeader{static_cast<wire::RecordType>(0x80 + random() % 0x11),
                                     static_cast<uint8_t>(random()), static_cast<uint16_t>(bytes),
                                     static_cast<uint32_t>(random() % 4)});
    }
    link.writer().Staged();
  }
}

// A peer that is awake closes a link within two or three, 1 ms apart.
constexpr int kBatches = 200;

// Does `act` in the seat of a proved link of this process, again and again, until the peer closes
// it; `batches` times at most.
bool ActUntilClosed(const std::string& address, const std::string& transport, int batches,
                    absl::FunctionRef<void(session::LinkImpl&)> act_once) {
  reactor::Reactor& reactor = reactor::DefaultReactor();
  session::Engine& engine = session::EngineOf(reactor);
  session::ConnectOptions options;
  options.address = address;
  options.transports = {transport};
  Owner owner;
  session::Connect(engine, options, owner, [&owner](absl::StatusOr<session::Link*> link) {
    owner.link = link.ok() ? *link : nullptr;
  });
  REQUIRE(Within(absl::Seconds(10), [&] { return owner.link != nullptr; }));
  const auto in_seat = [&](absl::FunctionRef<void()> act) {
    std::atomic<bool> done{false};
    session::RunInSeat(reactor, [&] {
      if (!owner.down) act();
      done = true;
    });
    REQUIRE(Within(absl::Seconds(10), [&] { return done.load(); }));
  };
  for (int batch = 0; batch < batches && !owner.down; ++batch) {
    in_seat([&] { act_once(session::LinkImpl::Of(*owner.link)); });
    absl::SleepFor(absl::Milliseconds(1));
  }
  const bool closed = owner.down;
  in_seat([&] { owner.link.load()->Close(absl::CancelledError("the test's end")); });
  REQUIRE(Within(absl::Seconds(10), [&] { return owner.down.load(); }));
  return closed;
}

}  // namespace

bool SendRandomRecords(const std::string& address, const std::string& transport, uint32_t seed) {
  std::mt19937 random(seed);
  return ActUntilClosed(address, transport, kBatches * kSlowdown,
                        [&random](session::LinkImpl& link) { WriteRandom(link, random); });
}

bool FloodProved(const std::string& address) {
  return ActUntilClosed(address, "shm", kBatches, [](session::LinkImpl& link) {
    fabric::Fabric& fabric = link.fabric();
    const uint32_t granted = link.writer().credits().TakeGrant();
    // In the seat, so that this end neither hears of grants nor gives any: then the other end's run
    // out, however fast it reads: each grant costs it one of 255 that it has left at most, and is
    // for four of these frames at most.
    for (uint32_t i = 0; i < 4000; ++i) {
      fabric::OutFrame frame;
      if (!fabric.AcquireFrame(link.id(), frame)) return;
      // Odd sizes, so that a ring that is run over does not hold whole frames.
      frame.bytes = std::min(frame.capacity, 4096u + 64u * (i % 64));
      std::memset(frame.data, 0, frame.bytes);
      wire::WriteFrameHeader(frame.data, frame.bytes, granted);
      const auto bytes = static_cast<uint16_t>(frame.bytes - wire::kFrameHeaderBytes);
      wire::Store(frame.data + wire::kFrameHeaderBytes,
                  wire::RecordHeader{wire::RecordType::kPadding, 0, bytes, 0});
      fabric.Send(link.id(), {&frame, 1});
    }
    absl::SleepFor(absl::Milliseconds(20));
  });
}

}  // namespace verbena::system_test
