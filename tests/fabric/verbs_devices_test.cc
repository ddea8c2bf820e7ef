// The RDMA devices that this machine has. Where it has none, each case says why and is skipped; in
// a guest of tests/guest/run, which always has one, that is a failure. Cases that take interfaces
// down run in guests only.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "rpc/base/log.h"
#include "rpc/fabric/verbs/calls.h"
#include "rpc/fabric/verbs/device.h"
#include "rpc/fabric/verbs/domain.h"
#include "rpc/fabric/verbs/sysfs.h"
#include "tests/catch.h"

namespace verbena::fabric::verbs {
namespace {

using Catch::ContainsSubstring;

bool InGuest() { return std::getenv("GUEST_INDEX") != nullptr; }

bool Skipped() {
  if (!Device::All().empty()) return false;
  if (InGuest()) FAIL("no device in a guest: " << Device::WhyNone());
  WARN("verbs skipped: " << Device::WhyNone());
  return true;
}

bool SkippedOutsideGuests() {
  if (InGuest()) return Skipped();
  WARN("verbs skipped: changes network interfaces, so only in a guest");
  return true;
}

PortAddress ThePort() {
  absl::StatusOr<PortAddress> port = ChoosePort(-1, PortFilter{});
  INFO(port.status());
  REQUIRE(port.ok());
  return *std::move(port);
}

class Heard final : public DeviceListener {
 public:
  explicit Heard(Device* device) : device_(device) { device_->AddListener(this); }
  ~Heard() { device_->RemoveListener(this); }

  void OnDeviceEvent(DeviceEvent event, uint8_t port, uint32_t qp_number) override {
    std::lock_guard lock(mutex_);
    events_.push_back(absl::StrCat(absl::string_view(Name(event)), " ", port, " ", qp_number));
  }
  // Waits for one that begins so; only what hangs is stopped.
  bool Hears(const std::string& start) {
    const absl::Time end = absl::Now() + absl::Seconds(60);
    while (absl::Now() < end) {
      {
        std::lock_guard lock(mutex_);
        for (const std::string& event : events_) {
          if (event.rfind(start, 0) == 0) return true;
        }
      }
      absl::SleepFor(absl::Milliseconds(5));
    }
    return false;
  }
  size_t count() {
    std::lock_guard lock(mutex_);
    return events_.size();
  }

 private:
  Device* device_;
  std::mutex mutex_;
  std::vector<std::string> events_;
};

void Run(const std::string& command) {
  INFO(command);
  REQUIRE(std::system(command.c_str()) == 0);
}

TEST_CASE("devices are open, with limits that make sense", "[verbs][devices]") {
  if (Skipped()) return;
  absl::string_view before;
  for (Device* device : Device::All()) {
    INFO(std::string(device->name()));
    CHECK(before < device->name());
    before = device->name();
    REQUIRE(device->context() != nullptr);
    CHECK_FALSE(device->dead());
    const DeviceLimits& limits = device->limits();
    CHECK(limits.qp_max > 0);
    CHECK(limits.qp_wr_max >= 64);
    CHECK(limits.cq_entries_max >= 1024);
    CHECK(limits.sge_max > 0);
    CHECK(limits.sge_rd_max > 0);
    CHECK(limits.read_depth_initiator > 0);
    CHECK(limits.read_depth_responder > 0);
    CHECK(limits.mr_max > 0);
    CHECK(limits.mr_bytes_max >= 1 << 30);
    CHECK(limits.message_bytes_max >= 1 << 20);
    CHECK(limits.windows_2b == (limits.mw_max > 0));
    if (!InGuest()) continue;
    // soft-RoCE, so that a number that is read wrongly does not pass as a device's poverty.
    CHECK(limits.srq_max > 0);
    CHECK(limits.srq_wr_max >= 1024);
    CHECK(limits.windows_2b);
    CHECK(limits.inline_bytes_hint >= 256);
    CHECK(limits.read_depth_initiator == 128);
    CHECK_FALSE(limits.dmabuf);
    CHECK_FALSE(limits.dmabuf_unknown);
  }
  if (InGuest()) CHECK(Device::WhyNone().empty());
}

TEST_CASE("a port is chosen, with an address and a reason", "[verbs][devices]") {
  if (Skipped()) return;
  const PortAddress port = ThePort();
  CHECK(port.port >= 1);
  CHECK(port.mtu_active >= IBV_MTU_256);
  CHECK(port.pkey != 0);
  CHECK_FALSE(port.gid_text.empty());
  CHECK_THAT(port.why, ContainsSubstring(std::string(port.device->name())));
  if (!InGuest()) return;
  CHECK(port.ethernet);
  CHECK(port.grh);
  CHECK(port.lid == 0);
  CHECK(port.roce_version == 2);
  CHECK(port.pkey == 0xffff);
  CHECK(port.gid_text == absl::StrCat("::ffff:", std::getenv("GUEST_ADDRESS")));
  CHECK_THAT(port.why, ContainsSubstring("link-local"));
  // By address, where two ways lead to the same host.
  PortFilter filter;
  filter.peer_ip = "fd77:0::99";
  const absl::StatusOr<PortAddress> other = ChoosePort(0, filter);
  REQUIRE(other.ok());
  CHECK_THAT(other->gid_text, ContainsSubstring("fd77:"));
}

TEST_CASE("a filter that nothing meets is said", "[verbs][devices]") {
  if (Skipped()) return;
  PortFilter filter;
  filter.device = "no_such_device";
  const absl::Status unknown = ChoosePort(0, filter).status();
  CHECK(unknown.code() == absl::StatusCode::kFailedPrecondition);
  // Which devices there are is said.
  for (Device* device : Device::All()) {
    CHECK_THAT(std::string(unknown.message()), ContainsSubstring(std::string(device->name())));
  }
  filter = {};
  filter.gid_index = 250;
  const absl::Status none = ChoosePort(0, filter).status();
  CHECK(none.code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(std::string(none.message()), ContainsSubstring("no GID 250"));
}

TEST_CASE("without devices a port is NOT_FOUND, with the reason", "[verbs][devices]") {
  if (!Device::All().empty()) return;
  const absl::Status none = ChoosePort(0, PortFilter{}).status();
  CHECK(none.code() == absl::StatusCode::kNotFound);
  CHECK(std::string(none.message()) == Device::WhyNone());
  CHECK_FALSE(Device::WhyNone().empty());
}

TEST_CASE("a child of fork() has no devices, and does not hold the parent's open",
          "[verbs][devices]") {
  if (Skipped()) return;
  const int fd = Device::All()[0]->context()->cmd_fd;
  REQUIRE(fcntl(fd, F_GETFD) >= 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const bool right = Device::All().empty() && !Device::WhyNone().empty() &&
                       !ChoosePort(0, PortFilter{}).ok() && fcntl(fd, F_GETFD) < 0;
    _exit(right ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(fcntl(fd, F_GETFD) >= 0);
}

// A QP that talks to itself over a port, with an SRQ.
struct Loop {
  Loop(const PortAddress& port, void* srq_context) {
    pd = *Made("ibv_alloc_pd", ibv_alloc_pd(port.device->context()));
    cq = *Made("ibv_create_cq", ibv_create_cq(port.device->context(), 16, nullptr, nullptr, 0));
    ibv_srq_init_attr srq_wanted{};
    srq_wanted.srq_context = srq_context;
    srq_wanted.attr = {.max_wr = 8, .max_sge = 1, .srq_limit = 0};
    srq = *Made("ibv_create_srq", ibv_create_srq(pd, &srq_wanted));
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = cq;
    wanted.srq = srq;
    wanted.qp_type = IBV_QPT_RC;
    wanted.sq_sig_all = 1;
    wanted.cap.max_send_wr = 4;
    wanted.cap.max_send_sge = 1;
    qp = *Made("ibv_create_qp", ibv_create_qp(pd, &wanted));
    mr = *Made("ibv_reg_mr", ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE));
    Connect(port);
  }
  ~Loop() {
    CHECK(ErrnoReturned("ibv_destroy_qp", ibv_destroy_qp(qp)).ok());
    CHECK(ErrnoReturned("ibv_destroy_srq", ibv_destroy_srq(srq)).ok());
    CHECK(ErrnoReturned("ibv_dereg_mr", ibv_dereg_mr(mr)).ok());
    CHECK(ErrnoReturned("ibv_destroy_cq", ibv_destroy_cq(cq)).ok());
    CHECK(ErrnoReturned("ibv_dealloc_pd", ibv_dealloc_pd(pd)).ok());
  }

  void Connect(const PortAddress& port) {
    ibv_qp_attr to{};
    to.qp_state = IBV_QPS_INIT;
    to.pkey_index = port.pkey_index;
    to.port_num = port.port;
    Modify(to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    to.qp_state = IBV_QPS_RTR;
    to.path_mtu = port.mtu_active;
    to.dest_qp_num = qp->qp_num;
    to.max_dest_rd_atomic = 1;
    to.min_rnr_timer = 12;
    to.ah_attr.is_global = port.grh;
    to.ah_attr.grh.dgid = port.gid;
    to.ah_attr.grh.sgid_index = static_cast<uint8_t>(port.gid_index);
    to.ah_attr.grh.hop_limit = 64;
    to.ah_attr.dlid = port.lid;
    to.ah_attr.port_num = port.port;
    Modify(to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    to.qp_state = IBV_QPS_RTS;
    to.timeout = 14;
    to.retry_cnt = 6;
    to.rnr_retry = 6;
    to.max_rd_atomic = 1;
    Modify(to, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                   IBV_QP_MAX_QP_RD_ATOMIC);
  }

  void Modify(ibv_qp_attr& to, int mask) {
    const absl::Status done = ErrnoReturned("ibv_modify_qp", ibv_modify_qp(qp, &to, mask));
    INFO(done);
    REQUIRE(done.ok());
  }

  // 8 bytes from the first half of the memory to the second.
  void SendOne() {
    std::memcpy(memory, "verbena!", 8);
    std::memset(memory + 64, 0, 8);
    ibv_sge piece{reinterpret_cast<uint64_t>(memory + 64), 64, mr->lkey};
    ibv_recv_wr receive{};
    receive.sg_list = &piece;
    receive.num_sge = 1;
    ibv_recv_wr* bad_receive = nullptr;
    REQUIRE(ErrnoReturned("", ibv_post_srq_recv(srq, &receive, &bad_receive)).ok());
    ibv_sge from{reinterpret_cast<uint64_t>(memory), 8, mr->lkey};
    ibv_send_wr send{};
    send.opcode = IBV_WR_SEND;
    send.sg_list = &from;
    send.num_sge = 1;
    ibv_send_wr* bad_send = nullptr;
    REQUIRE(ErrnoReturned("", ibv_post_send(qp, &send, &bad_send)).ok());
    for (int seen = 0; seen < 2;) {
      ibv_wc done{};
      const int count = ibv_poll_cq(cq, 1, &done);
      REQUIRE(count >= 0);
      if (count == 0) continue;
      REQUIRE(done.status == IBV_WC_SUCCESS);
      ++seen;
    }
    CHECK(std::memcmp(memory + 64, "verbena!", 8) == 0);
  }

  ibv_pd* pd;
  ibv_cq* cq;
  ibv_srq* srq;
  ibv_qp* qp;
  ibv_mr* mr;
  char memory[128];
};

TEST_CASE("a QP over the chosen port reaches itself", "[verbs][devices]") {
  if (Skipped()) return;
  const PortAddress port = ThePort();
  Loop loop(port, nullptr);
  loop.SendOne();
}

// A file of /tmp with a pattern, mapped shared and read-only.
class MappedFile {
 public:
  explicit MappedFile(size_t bytes) : bytes_(bytes) {
    REQUIRE(file_ != nullptr);
    std::string pattern(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) pattern[i] = static_cast<char>(i * 7 + i / 251);
    REQUIRE(fwrite(pattern.data(), 1, bytes, file_) == bytes);
    REQUIRE(fflush(file_) == 0);
    void* const data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fileno(file_), 0);
    REQUIRE(data != MAP_FAILED);
    data_ = static_cast<const std::byte*>(data);
  }
  ~MappedFile() {
    munmap(const_cast<std::byte*>(data_), bytes_);
    fclose(file_);
  }
  void Truncate(size_t bytes) { REQUIRE(ftruncate(fileno(file_), off_t(bytes)) == 0); }
  const std::byte* data() const { return data_; }

 private:
  FILE* const file_ = tmpfile();
  const size_t bytes_;
  const std::byte* data_ = nullptr;
};

TEST_CASE("a file mapped read-only can be leased, and one that was cut off cannot",
          "[verbs][devices]") {
  if (Skipped()) return;
  constexpr size_t kBytes = 300'001;
  Domain* const domain = Domain::Of(*ThePort().device, Revocation::kLeaseMr).value();
  MappedFile file(kBytes);
  // Expect: the file's bytes, there or in a copy, where the kernel does not pin such memory.
  for (const size_t offset : {0, 1, 4097}) {
    const absl::StatusOr<ibv_mr*> mr =
        domain->RegisterRange(file.data() + offset, kBytes - offset, true);
    INFO(mr.status());
    REQUIRE(mr.ok());
    CHECK((*mr)->length == kBytes - offset);
    CHECK(memcmp((*mr)->addr, file.data() + offset, kBytes - offset) == 0);
    Domain::Deregister(*mr);
  }
  file.Truncate(4096);
  const absl::Status gone = domain->RegisterRange(file.data(), kBytes, true).status();
  INFO(gone);
  CHECK(absl::IsInvalidArgument(gone));
}

TEST_CASE("hardware counters are read from a real device", "[verbs][devices]") {
  if (Skipped()) return;
  if (!InGuest()) return;  // Not every driver counts.
  const PortAddress port = ThePort();
  const auto sent = [&port] {
    return HardwareCounters(port.device->name(), port.port).at("sent_pkts");
  };
  const uint64_t before = sent();
  Loop loop(port, nullptr);
  loop.SendOne();
  // The kernel reads them anew some ms apart.
  const absl::Time end = absl::Now() + absl::Seconds(60);
  while (sent() == before && absl::Now() < end) absl::SleepFor(absl::Milliseconds(5));
  CHECK(sent() > before);
}

TEST_CASE("an event of an SRQ goes to the listener in its context, and is acknowledged",
          "[verbs][devices]") {
  if (Skipped()) return;
  const PortAddress port = ThePort();
  Heard owner(port.device);
  Heard other(port.device);
  {
    Loop loop(port, static_cast<DeviceListener*>(&owner));
    ibv_srq_attr limit{};
    limit.srq_limit = 4;  // more than will be there
    REQUIRE(ErrnoReturned("", ibv_modify_srq(loop.srq, &limit, IBV_SRQ_LIMIT)).ok());
    loop.SendOne();
    CHECK(owner.Hears("SRQ below its limit"));
    // Destroying waits for the event's acknowledgement.
  }
  CHECK(other.count() == 0);
}

TEST_CASE("a link that goes down and comes back is heard of, and not chosen meanwhile",
          "[verbs][devices]") {
  if (SkippedOutsideGuests()) return;
  SetLogLevel(LogLevel::kError);
  const PortAddress port = ThePort();
  const std::string name(port.device->name());
  const std::string netdev = NetdevOf(name, port.port);
  PortFilter filter;
  filter.device = name;
  Heard heard(port.device);

  // Else the interface comes back without its IPv6 addresses, which other cases want.
  Run("echo 1 > /proc/sys/net/ipv6/conf/" + netdev + "/keep_addr_on_down");
  Run("ip link set " + netdev + " down");
  CHECK(heard.Hears("port down 1"));
  const absl::Status down = ChoosePort(0, filter).status();
  CHECK(down.code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(std::string(down.message()), ContainsSubstring("the link is not up"));
  CHECK_FALSE(port.device->dead());

  Run("ip link set " + netdev + " up");
  CHECK(heard.Hears("port up 1"));
  const absl::StatusOr<PortAddress> again = ChoosePort(0, filter);
  INFO(again.status());
  REQUIRE(again.ok());
  CHECK(again->gid_text == port.gid_text);
  Loop loop(*again, nullptr);
  loop.SendOne();
  SetLogLevel(LogLevel::kWarning);
}

TEST_CASE("a new address is heard of, and chosen where it is the better one", "[verbs][devices]") {
  if (SkippedOutsideGuests()) return;
  const PortAddress port = ThePort();
  const std::string netdev = NetdevOf(port.device->name(), port.port);
  Heard heard(port.device);
  Run("ip address add 10.99.0.1/24 dev " + netdev);
  CHECK(heard.Hears("GID change 1"));
  PortFilter filter;
  filter.device = std::string(port.device->name());
  filter.peer_ip = "10.99.0.7";
  const absl::StatusOr<PortAddress> near = ChoosePort(0, filter);
  REQUIRE(near.ok());
  CHECK(near->gid_text == "::ffff:10.99.0.1");
  CHECK_THAT(near->why, ContainsSubstring("not in the peer's subnet"));
  CHECK(ThePort().gid_text == port.gid_text);
  Run("ip address del 10.99.0.1/24 dev " + netdev);
}

TEST_CASE("each node's device is chosen for its reactor", "[verbs][devices][numa]") {
  if (Skipped()) return;
  if (Device::All().size() < 2 || Device::All()[0]->numa_node() < 0 ||
      Device::All()[0]->numa_node() == Device::All()[1]->numa_node()) {
    // The guest that is made for this case says so.
    if (std::getenv("VERBENA_TEST_TWO_NODES") != nullptr) FAIL("no two devices on two nodes");
    WARN("verbs skipped: no two devices on two NUMA nodes");
    return;
  }
  for (Device* device : Device::All()) {
    const absl::StatusOr<PortAddress> port = ChoosePort(device->numa_node(), PortFilter{});
    REQUIRE(port.ok());
    INFO(port->why);
    CHECK(port->device->numa_node() == device->numa_node());
    CHECK_THAT(port->why, ContainsSubstring("distance 10"));
    CHECK_THAT(port->why, ContainsSubstring("(farther)"));
  }
}

}  // namespace
}  // namespace verbena::fabric::verbs
