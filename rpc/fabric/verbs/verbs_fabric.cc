// Making a fabric and ending it.
#include "rpc/fabric/verbs/verbs_fabric.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "rpc/base/clock.h"
#include "rpc/base/log.h"
#include "rpc/fabric/verbs/calls.h"

namespace verbena::fabric::verbs {
namespace {

// A chunk takes 5 us at 400 Gb/s, and a revocation waits for at most one.
constexpr uint32_t kReadChunkBytes = 256 << 10;
constexpr uint32_t kReadsInFlight = 16;
constexpr uint32_t kCopiedBytesMin = 128;
// How long the end of a fabric waits for the links of its peers to go down in order.
constexpr int64_t kEndNs = 2'000'000'000;

class NoSink final : public EventSink {
 public:
  void OnFrame(LinkId, absl::Span<const std::byte>) override {}
  void OnSendable(LinkId) override {}
  void OnLeased(LeaseSlot, Error, const RemoteKey&) override {}
  void OnRevoked(LeaseSlot) override {}
  void OnReadDone(ReadSlot, Error) override {}
  void OnLaneDown(LinkId, Lane, Error) override {}
  void OnLinkDown(LinkId, const absl::Status&) override {}
};

void Check(const char* call, int result) {
  const absl::Status status = ErrnoReturned(call, result);
  if (!status.ok()) VERBENA_LOG(kWarning, "verbs: ", status.message());
}

absl::Status Watch(int epoll_fd, int fd) {
  epoll_event event = {};
  event.events = EPOLLIN;
  return ErrnoSet("epoll_ctl", epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event));
}

}  // namespace

VerbsFabric::VerbsFabric(const VerbsOptions& options)
    : options_(options),
      inbox_(std::make_shared<Inbox>()),
      port_(options.port),
      reads_(limits::kReadsInFlightMax) {
  traits_.name = "verbs";
  traits_.segment_bytes = limits::kSegmentBytes;
  traits_.slot_bytes = limits::kSegmentBytes;
  traits_.window_slots = limits::kVerbsWindowFrames;
  traits_.publish_bytes = options.batch ? limits::kSegmentBytes : 1;
  traits_.gathers_sends = true;
  traits_.read_chunk_bytes = kReadChunkBytes;
  traits_.reads_in_flight = kReadsInFlight;
  traits_.prepares_lanes = true;
  traits_.path = ::verbena::Path::kRdmaRead;
  const bool windows = options.port.device->limits().windows_2b;
  traits_.revocation =
      options.revocation.value_or(windows ? Revocation::kWindow : Revocation::kLeaseMr);
  traits_.bounds_enforced = traits_.revocation == Revocation::kLeaseMr ||
                            (traits_.revocation == Revocation::kWindow && options.bounds_enforced);
}

absl::StatusOr<std::unique_ptr<VerbsFabric>> VerbsFabric::Create(const VerbsOptions& options) {
  std::unique_ptr<VerbsFabric> fabric(new VerbsFabric(options));
  absl::Status status = fabric->Open();
  if (!status.ok()) return status;
  return fabric;
}

absl::Status VerbsFabric::Open() {
  if (inbox_->error() != 0) return CallFailed("eventfd", inbox_->error());
  Device& device = *options_.port.device;
  ibv_context* const context = device.context();
  DeviceLimits limits = device.limits();
  if (!options_.srq) limits.srq_max = 0;
  absl::StatusOr<Sizes> sizes = PlanSizes(limits, options_.links_max);
  if (!sizes.ok()) return sizes.status();
  sizes_ = *sizes;
  // Less holds no call of its own, and each would be moved into a buffer.
  traits_.copied_bytes = sizes_.inline_bytes >= kCopiedBytesMin ? sizes_.inline_bytes : 0;
  absl::StatusOr<Domain*> domain = Domain::Of(device, traits_.revocation);
  if (!domain.ok()) return domain.status();
  domain_ = *domain;
  absl::StatusOr<ibv_pd*> pd = Made("ibv_alloc_pd", ibv_alloc_pd(context));
  if (!pd.ok()) return pd.status();
  pd_ = *pd;
  absl::StatusOr<ibv_comp_channel*> channel =
      Made("ibv_create_comp_channel", ibv_create_comp_channel(context));
  if (!channel.ok()) return channel.status();
  channel_ = *channel;
  // Before anything that may fail: the destructor empties it.
  const int flags = fcntl(channel_->fd, F_GETFL);
  absl::Status status = ErrnoSet("fcntl", fcntl(channel_->fd, F_SETFL, flags | O_NONBLOCK));
  if (!status.ok()) return status;
  for (auto [cq, entries] : {std::pair(&control_cq_, sizes_.control_cq_entries),
                             std::pair(&bulk_cq_, sizes_.bulk_cq_entries)}) {
    absl::StatusOr<ibv_cq*> made =
        Made("ibv_create_cq", ibv_create_cq(context, static_cast<int>(entries),
                                            static_cast<DeviceListener*>(this), channel_, 0));
    if (!made.ok()) return made.status();
    *cq = *made;
  }
  if (sizes_.srq) {
    ibv_srq_init_attr attributes = {};
    attributes.srq_context = static_cast<DeviceListener*>(this);
    attributes.attr.max_wr = sizes_.srq_entries;
    attributes.attr.max_sge = 1;
    absl::StatusOr<ibv_srq*> srq = Made("ibv_create_srq", ibv_create_srq(pd_, &attributes));
    if (!srq.ok()) return srq.status();
    srq_ = *srq;
  }
  receives_ = std::make_unique<ReceivePool>(
      pd_, srq_, traits_.segment_bytes,
      sizes_.links_max * sizes_.receives_per_link + sizes_.receives_spare, options_.node);
  absl::StatusOr<std::unique_ptr<FrameMemory>> memory = FrameMemory::Create(
      pd_, uint64_t{limits::kVerbsSendBuffers} * traits_.segment_bytes, options_.node);
  if (!memory.ok()) return memory.status();
  sends_ = std::make_unique<SendBuffers>(*std::move(memory), traits_.segment_bytes,
                                         limits::kVerbsSendBuffers);
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  status = ErrnoSet("epoll_create1", epoll_fd_ < 0 ? -1 : 0);
  if (status.ok()) status = Watch(epoll_fd_, channel_->fd);
  if (status.ok()) status = Watch(epoll_fd_, inbox_->bell());
  if (!status.ok()) return status;
  device.AddListener(this);
  options_.post_setup([domain = domain_] { domain->Join(); });
  return status;
}

VerbsFabric::~VerbsFabric() {
  for (const std::unique_ptr<Link>& link : links_) {
    if (link != nullptr) Close(link->id);
  }
  NoSink sink;
  const int64_t deadline_ns = SteadyNs() + kEndNs;
  const auto busy = [this] {
    return jobs_.load() > 0 || std::any_of(links_.begin(), links_.end(),
                                           [](const auto& link) { return link != nullptr; });
  };
  // A job that is under way uses what is destroyed below: it is waited for, however long it takes.
  while (busy() && (jobs_.load() > 0 || SteadyNs() < deadline_ns)) {
    if (!Poll(sink)) std::this_thread::yield();
  }
  options_.port.device->RemoveListener(this);
  while (TakeNews() || jobs_.load() > 0) std::this_thread::yield();
  setups_.clear();
  // Nothing of what follows is left when all links went down in time.
  for (const LeaseRecord& lease : leases_) {
    if (lease.window != nullptr) windows_.push_back(lease.window);
    if (lease.own != nullptr) Domain::Deregister(lease.own);
  }
  for (ibv_mw* window : windows_) Check("ibv_dealloc_mw", ibv_dealloc_mw(window));
  ends_.ForEach([](End& end) { end.owned.pair.reset(); });
  DrainChannel();
  if (srq_ != nullptr) Check("ibv_destroy_srq", ibv_destroy_srq(srq_));
  if (control_cq_ != nullptr) Check("ibv_destroy_cq", ibv_destroy_cq(control_cq_));
  if (bulk_cq_ != nullptr) Check("ibv_destroy_cq", ibv_destroy_cq(bulk_cq_));
  if (channel_ != nullptr) {
    Check("ibv_destroy_comp_channel", ibv_destroy_comp_channel(channel_));
  }
  receives_.reset();
  sends_.reset();
  if (pd_ != nullptr) Check("ibv_dealloc_pd", ibv_dealloc_pd(pd_));
  if (epoll_fd_ >= 0) close(epoll_fd_);
}

}  // namespace verbena::fabric::verbs
