#include "rpc/fabric/verbs/self_test.h"

#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "rpc/base/clock.h"
#include "rpc/base/log.h"
#include "rpc/fabric/verbs/calls.h"
#include "rpc/fabric/verbs/device_memory.h"
#include "rpc/fabric/verbs/queue_pair.h"
#include "rpc/memory/copy_now.h"

namespace verbena::fabric::verbs {
namespace {

constexpr uint32_t kPage = 4096;
constexpr int64_t kStepNs = 2'000'000'000;

// Two queue pairs that reach each other: `reader_` sends and READs, `owner_` receives and owns.
class Loopback {
 public:
  explicit Loopback(const PortAddress& port) : port_(port), context_(port.device->context()) {}
  ~Loopback();

  absl::Status Open();
  absl::Status Send();
  absl::Status Read(const std::byte* from, uint32_t rkey, uint32_t bytes);
  // Says nothing of what arrived.
  absl::Status Move(ibv_sge into, const std::byte* from, uint32_t rkey);
  // Binds `window_` over the first page of what is owned.
  absl::Status Bind();
  absl::Status Invalidate();
  absl::Status AllocateWindow();

  // Third page of four: what is owned. The second is read into.
  std::byte* owned() { return memory_ + 2 * kPage; }
  std::byte* target() { return memory_ + kPage; }
  ibv_sge target_piece() const {
    return {reinterpret_cast<uint64_t>(memory_ + kPage), kPage, mr_->lkey};
  }
  ibv_pd* pd() const { return pd_; }
  uint32_t mr_rkey() const { return mr_->rkey; }
  uint32_t window_rkey() const { return window_->rkey; }

 private:
  absl::Status Do(QueuePair& pair, ibv_send_wr& work, const char* what);
  // The next completion. DEADLINE_EXCEEDED: none came.
  absl::StatusOr<ibv_wc> Next();

  const PortAddress port_;
  ibv_context* const context_;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_mw* window_ = nullptr;
  std::unique_ptr<QueuePair> reader_, owner_;
  alignas(kPage) std::byte memory_[4 * kPage];
};

Loopback::~Loopback() {
  const auto check = [](const char* call, int result) {
    const absl::Status status = ErrnoReturned(call, result);
    if (!status.ok()) VERBENA_LOG(kWarning, "verbs: ", status.message());
  };
  if (window_ != nullptr) check("ibv_dealloc_mw", ibv_dealloc_mw(window_));
  reader_.reset();
  owner_.reset();
  if (mr_ != nullptr) check("ibv_dereg_mr", ibv_dereg_mr(mr_));
  if (cq_ != nullptr) check("ibv_destroy_cq", ibv_destroy_cq(cq_));
  if (pd_ != nullptr) check("ibv_dealloc_pd", ibv_dealloc_pd(pd_));
}

absl::Status Loopback::Open() {
  absl::StatusOr<ibv_pd*> pd = Made("ibv_alloc_pd", ibv_alloc_pd(context_));
  if (!pd.ok()) return pd.status();
  pd_ = *pd;
  absl::StatusOr<ibv_cq*> cq =
      Made("ibv_create_cq", ibv_create_cq(context_, 64, nullptr, nullptr, 0));
  if (!cq.ok()) return cq.status();
  cq_ = *cq;
  int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
  if (port_.device->limits().windows_2b) access |= IBV_ACCESS_MW_BIND;
  absl::StatusOr<ibv_mr*> mr = Made("ibv_reg_mr", ibv_reg_mr(pd_, memory_, sizeof memory_, access));
  if (!mr.ok()) return mr.status();
  mr_ = *mr;
  QueuePairOptions options;
  options.port = port_;
  options.pd = pd_;
  options.cq = cq_;
  options.send_work = options.receive_work = 8;
  options.remote_read = true;
  options.read_depth_in = options.read_depth_out = 1;
  for (std::unique_ptr<QueuePair>* pair : {&reader_, &owner_}) {
    absl::StatusOr<std::unique_ptr<QueuePair>> made = QueuePair::Create(options);
    if (!made.ok()) return made.status();
    *pair = *std::move(made);
  }
  absl::Status status = owner_->Connect(reader_->local());
  if (status.ok()) status = reader_->Connect(owner_->local());
  return status;
}

absl::StatusOr<ibv_wc> Loopback::Next() {
  ibv_wc completion = {};
  const int64_t deadline_ns = SteadyNs() + kStepNs;
  while (ibv_poll_cq(cq_, 1, &completion) == 0) {
    if (SteadyNs() > deadline_ns) {
      return absl::DeadlineExceededError(
          absl::StrCat("no completion within ", kStepNs / 1'000'000, " ms"));
    }
    std::this_thread::yield();
  }
  return completion;
}

absl::Status Loopback::Do(QueuePair& pair, ibv_send_wr& work, const char* what) {
  work.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* refused = nullptr;
  absl::Status status =
      ErrnoReturned("ibv_post_send", ibv_post_send(pair.handle(), &work, &refused));
  if (!status.ok()) return status;
  absl::StatusOr<ibv_wc> done = Next();
  if (!done.ok())
    return absl::Status(done.status().code(), absl::StrCat(what, ": ", done.status().message()));
  if (done->status == IBV_WC_SUCCESS) return absl::OkStatus();
  const absl::StatusCode code = done->status == IBV_WC_REM_ACCESS_ERR
                                    ? absl::StatusCode::kPermissionDenied
                                    : absl::StatusCode::kInternal;
  return absl::Status(code, absl::StrCat(what, ": ", ibv_wc_status_str(done->status)));
}

void Fill(std::byte* data, uint32_t bytes, uint32_t seed) {
  for (uint32_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 31 + seed);
}

absl::Status Loopback::Send() {
  ibv_sge into = {reinterpret_cast<uint64_t>(memory_ + kPage), kPage, mr_->lkey};
  ibv_recv_wr receive = {};
  receive.sg_list = &into;
  receive.num_sge = 1;
  ibv_recv_wr* refused = nullptr;
  absl::Status status =
      ErrnoReturned("ibv_post_recv", ibv_post_recv(owner_->handle(), &receive, &refused));
  if (!status.ok()) return status;
  Fill(memory_, kPage, 1);
  memset(memory_ + kPage, 0, kPage);
  ibv_sge from = {reinterpret_cast<uint64_t>(memory_), kPage, mr_->lkey};
  ibv_send_wr work = {};
  work.sg_list = &from;
  work.num_sge = 1;
  work.opcode = IBV_WR_SEND;
  status = Do(*reader_, work, "a SEND");  // this completion, or the receive's
  if (!status.ok()) return status;
  absl::StatusOr<ibv_wc> other = Next();
  if (!other.ok()) return other.status();
  if (other->status != IBV_WC_SUCCESS) {
    return absl::InternalError(absl::StrCat("a SEND: ", ibv_wc_status_str(other->status)));
  }
  if (memcmp(memory_, memory_ + kPage, kPage) == 0) return absl::OkStatus();
  return absl::DataLossError("a SEND arrived with other bytes");
}

absl::Status Loopback::Read(const std::byte* from, uint32_t rkey, uint32_t bytes) {
  memset(memory_ + kPage, 0, kPage);
  const absl::Status status =
      Move({reinterpret_cast<uint64_t>(memory_ + kPage), bytes, mr_->lkey}, from, rkey);
  if (!status.ok()) return status;
  if (memcmp(from, memory_ + kPage, bytes) == 0) return status;
  return absl::DataLossError("a READ brought other bytes");
}

absl::Status Loopback::Move(ibv_sge into, const std::byte* from, uint32_t rkey) {
  ibv_send_wr work = {};
  work.sg_list = &into;
  work.num_sge = 1;
  work.opcode = IBV_WR_RDMA_READ;
  work.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(from);
  work.wr.rdma.rkey = rkey;
  return Do(*reader_, work, "a READ");
}

absl::Status Loopback::AllocateWindow() {
  if (!port_.device->limits().windows_2b) {
    return absl::UnimplementedError("the device has no memory windows of type 2B");
  }
  absl::StatusOr<ibv_mw*> window = Made("ibv_alloc_mw", ibv_alloc_mw(pd_, IBV_MW_TYPE_2));
  if (window.ok()) window_ = *window;
  return window.status();
}

absl::Status Loopback::Bind() {
  ibv_send_wr work = {};
  work.opcode = IBV_WR_BIND_MW;
  work.bind_mw.mw = window_;
  work.bind_mw.rkey = ibv_inc_rkey(window_->rkey);
  work.bind_mw.bind_info.mr = mr_;
  work.bind_mw.bind_info.addr = reinterpret_cast<uint64_t>(owned());
  work.bind_mw.bind_info.length = kPage;
  work.bind_mw.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_READ;
  absl::Status status = Do(*owner_, work, "a window's bind");
  if (status.ok()) window_->rkey = work.bind_mw.rkey;
  return status;
}

absl::Status Loopback::Invalidate() {
  ibv_send_wr work = {};
  work.opcode = IBV_WR_LOCAL_INV;
  work.invalidate_rkey = window_->rkey;
  return Do(*owner_, work, "a window's invalidation");
}

// A window of its own for each, since the READ that is refused costs the queue pairs.
absl::Status TestWindow(const PortAddress& port, bool past_its_end, bool& refused) {
  auto loop = std::make_unique<Loopback>(port);
  absl::Status status = loop->Open();
  if (status.ok()) status = loop->AllocateWindow();
  if (status.ok()) status = loop->Bind();
  if (!status.ok()) return status;
  Fill(loop->owned(), 2 * kPage, 3);
  const uint32_t rkey = loop->window_rkey();
  status = loop->Read(loop->owned(), rkey, kPage);
  if (!status.ok()) return status;
  if (past_its_end) {
    refused = absl::IsPermissionDenied(loop->Read(loop->owned() + kPage, rkey, 1));
    return status;
  }
  status = loop->Invalidate();
  if (!status.ok()) return status;
  refused = !loop->Read(loop->owned(), rkey, 1).ok();
  return refused ? status : absl::InternalError("a window that was taken back could still be READ");
}

// A page of a device's memory, registered for both ways.
class DevicePage {
 public:
  explicit DevicePage(memory::Device& device) : device_(device) {}
  ~DevicePage() {
    if (mr_ != nullptr) DeregisterDevice(mr_);
    if (extent_.base != nullptr) device_.Free(extent_);
  }
  DevicePage(const DevicePage&) = delete;
  DevicePage& operator=(const DevicePage&) = delete;

  absl::Status Open(ibv_pd* pd) {
    absl::StatusOr<memory::Extent> extent = device_.Allocate(kPage);
    if (!extent.ok()) return extent.status();
    extent_ = *extent;
    absl::StatusOr<ibv_mr*> mr = RegisterDevice(pd, device_, extent_, extent_.base, kPage,
                                                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    if (mr.ok()) mr_ = *mr;
    return mr.status();
  }
  std::byte* data() const { return extent_.base; }
  ibv_mr* mr() const { return mr_; }

 private:
  memory::Device& device_;
  memory::Extent extent_;
  ibv_mr* mr_ = nullptr;
};

}  // namespace

absl::Status RunDeviceTest(const PortAddress& port, memory::Device& device) {
  auto loop = std::make_unique<Loopback>(port);
  absl::Status status = loop->Open();
  if (!status.ok()) return status;
  DevicePage page(device);
  status = page.Open(loop->pd());
  if (!status.ok()) return status;
  Fill(loop->owned(), kPage, 4);
  const ibv_sge into = {reinterpret_cast<uint64_t>(page.data()), kPage, page.mr()->lkey};
  status = loop->Move(into, loop->owned(), loop->mr_rkey());
  if (status.ok()) status = memory::NicAccessOf(device)->FlushNicWrites();
  // By the device's own copies, which see what its work would see.
  memset(loop->target(), 0, kPage);
  const memory::CopyPiece back{loop->target(), page.data(), kPage};
  if (status.ok()) status = memory::CopyNow(device.where(), {&back, 1});
  if (!status.ok()) return status;
  if (memcmp(loop->target(), loop->owned(), kPage) != 0) {
    return absl::DataLossError("what the NIC wrote is not what the device sees");
  }
  memset(loop->target(), 0, kPage);
  status = loop->Move(loop->target_piece(), page.data(), page.mr()->rkey);
  if (!status.ok()) return status;
  if (memcmp(loop->target(), loop->owned(), kPage) == 0) return status;
  return absl::DataLossError("the NIC reads other bytes than the device has");
}

SelfTest RunSelfTest(const PortAddress& port) {
  SelfTest result;
  auto loop = std::make_unique<Loopback>(port);
  const absl::Status opened = loop->Open();
  result.send = opened.ok() ? loop->Send() : opened;
  result.read = result.send;
  if (result.read.ok()) {
    Fill(loop->owned(), kPage, 2);
    result.read = loop->Read(loop->owned(), loop->mr_rkey(), kPage);
  }
  loop.reset();
  bool refused = false;
  result.window = result.read.ok() ? TestWindow(port, false, refused) : result.read;
  refused = false;
  if (result.window.ok()) {
    result.bounds_enforced = TestWindow(port, true, refused).ok() && refused;
  }
  return result;
}

}  // namespace verbena::fabric::verbs
