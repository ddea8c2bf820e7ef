#include "rpc/fabric/shm/shm_fabric.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/base/limits.h"
#include "rpc/fabric/shm/withdrawals.h"

namespace verbena::fabric::shm {
namespace {

// Large enough that an engine sees by itself that a copy is worth streaming past the caches; small
// enough that a lane breaks within a millisecond or two.
constexpr uint32_t kReadChunkBytes = 8 << 20;
// Between GPUs: 3 ms by NVLink, 0.5 ms on one. On two H200 of one host, chunks of 8 MiB cost 15 %
// of the rate between them, and 40 % on one.
constexpr uint32_t kDeviceChunkBytes = 1 << 30;

}  // namespace

static_assert(limits::kSegmentBytes <= kRingBytes / 2, "two frames fit a ring");
static_assert(limits::kSegmentBytes <= UINT16_MAX, "a frame's length is in its first two bytes");

absl::Status ShmUsable() { return Segment::Create().status(); }

ShmFabric::ShmFabric(const ShmOptions& options)
    : options_(options),
      inbox_(std::make_shared<Inbox>()),
      epoll_fd_(epoll_create1(EPOLL_CLOEXEC)),
      transfers_(*this),
      stages_(*this) {
  VERBENA_CHECK(options_.host != nullptr && options_.post_setup != nullptr);
  VERBENA_CHECK(epoll_fd_ >= 0, "epoll_create1: errno ", errno);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = ~uint64_t{0};
  VERBENA_CHECK(epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, inbox_->bell(), &event) == 0);
  event.events = EPOLLIN | EPOLLET;
  VERBENA_CHECK(epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, inbox_->own_bell(), &event) == 0);
  HearOfWithdrawals(inbox_);
  traits_.name = "shm";
  traits_.segment_bytes = limits::kSegmentBytes;
  traits_.slot_bytes = kLineBytes;
  traits_.window_slots = kRingLines - 1;  // the line after the last frame starts with zeros
  traits_.publish_bytes = 512;
  traits_.copied_bytes = limits::kSegmentBytes;
  traits_.read_chunk_bytes = kReadChunkBytes;
  traits_.device_chunk_bytes = kDeviceChunkBytes;
  traits_.orders_reads = true;
  traits_.reads_in_flight = 2;
  traits_.revocation = Revocation::kWord;
  traits_.bounds_enforced = false;
}

ShmFabric::~ShmFabric() {
  for (std::unique_ptr<Link>& link : links_) {
    if (link == nullptr) continue;
    link->mine.control().closed.store(1, std::memory_order_release);
    WakePeer(*link);
    std::vector<HeldLease> held = TakeHeld(*link);
    if (!held.empty()) quarantine_.Add(std::move(link), std::move(held));
  }
  if (timer_fd_ >= 0) close(timer_fd_);
  close(epoll_fd_);
}

absl::StatusOr<Offer> ShmFabric::Prepare(LinkId id, Side, absl::string_view) {
  auto link = std::make_unique<Link>(id);
  auto offer = link->Prepare(inbox_->bell());
  if (!offer.ok()) return offer;
  link->mine.control().cpu.store(~0u, std::memory_order_relaxed);
  const std::lock_guard lock(preparing_mutex_);
  link->serial = next_serial_++;
  if (!preparing_.emplace(id, std::move(link)).second) {
    for (const int fd : offer->fds) close(fd);
    return absl::FailedPreconditionError(
        absl::StrCat("shm: link ", static_cast<uint32_t>(id), " is being prepared"));
  }
  return offer;
}

absl::Status ShmFabric::Complete(LinkId id, Offer peer, Sockets& sockets) {
  Link* link = nullptr;
  {
    const std::lock_guard lock(preparing_mutex_);
    const auto it = preparing_.find(id);
    VERBENA_CHECK(it != preparing_.end(), "Complete without Prepare");
    link = it->second.get();
  }
  absl::Status status = link->Complete(peer, sockets);
  if (!status.ok()) Abandon(id);
  return status;
}

void ShmFabric::Abandon(LinkId id) {
  std::unique_ptr<Link> link;
  const std::lock_guard lock(preparing_mutex_);
  const auto it = preparing_.find(id);
  if (it == preparing_.end()) return;
  link = std::move(it->second);
  preparing_.erase(it);
  link->mine.control().closed.store(1, std::memory_order_release);
}

uint64_t ShmFabric::StagedBytesMax(LinkId id) const {
  // Measured with whole tensor calls (benchmarks/verbena/tensors.cc, "tensor_user"): a copy to the
  // pools and a READ of that take 1.5 to 2.2 times as long as process_vm_readv at 16 and 64 KiB, as
  // long at 4 KiB, and a tenth less at 1 KiB, which is not worth a second way.
  const Link* const link = Find(id);
  const bool reads =
      link != nullptr && link->theirs.control().reads_process.load(std::memory_order_relaxed) != 0;
  return reads ? 0 : UINT64_MAX;
}

std::string ShmFabric::ReadWays(LinkId id) const {
  const std::lock_guard lock(preparing_mutex_);
  const auto it = preparing_.find(id);
  return it == preparing_.end() ? std::string() : it->second->read_ways;
}

absl::StatusOr<Offer> ShmFabric::PrepareLane(LinkId, Lane) {
  return absl::UnimplementedError("shm: lanes need no preparation");
}

absl::Status ShmFabric::CompleteLane(LinkId, Lane, Offer) {
  return absl::UnimplementedError("shm: lanes need no preparation");
}

void ShmFabric::Start(LinkId id) {
  const auto index = static_cast<size_t>(id);
  if (links_.size() <= index) links_.resize(index + 1);
  VERBENA_CHECK(links_[index] == nullptr, "link ", index, " is started already");
  {
    const std::lock_guard lock(preparing_mutex_);
    const auto it = preparing_.find(id);
    VERBENA_CHECK(it != preparing_.end() && it->second->channel != nullptr,
                  "Start without Complete");
    links_[index] = std::move(it->second);
    preparing_.erase(it);
  }
  Link& link = *links_[index];
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;  // what has come is not read here
  event.data.u64 = static_cast<uint32_t>(id);
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, link.channel->fd(), &event) != 0) {
    // The peer's death is then not heard of here; whoever watches the stream socket still does.
    link.cause = absl::ResourceExhaustedError(absl::StrCat("shm: epoll: ", strerror(errno)));
    Fail(link, link.cause);
  }
  link.active = true;
  Heat(link);
}

}  // namespace verbena::fabric::shm
