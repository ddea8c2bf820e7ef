// What is said of a machine and its devices: limits, locked memory, files of the kernel, failures.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "rpc/fabric/verbs/calls.h"
#include "rpc/fabric/verbs/device_probe.h"
#include "rpc/fabric/verbs/memlock.h"
#include "rpc/fabric/verbs/port_facts.h"
#include "rpc/fabric/verbs/sysfs.h"
#include "rpc/fabric/verbs/why_none.h"
#include "tests/catch.h"

namespace verbena::fabric::verbs {
namespace {

namespace fs = std::filesystem;
using Catch::ContainsSubstring;

constexpr uint64_t kMiB = 1 << 20;

TEST_CASE("locked memory is a problem only where the limit is in the way", "[verbs][machine]") {
  LockLimits limits;
  CHECK(LockProblem(1 << 30, limits).empty());
  limits.bytes_max = limits.bytes_max_hard = 8 * kMiB;
  CHECK(LockProblem(8 * kMiB, limits).empty());
  CHECK_FALSE(LockProblem(8 * kMiB + 1, limits).empty());
  limits.pinned_bytes = 6 * kMiB;
  CHECK(LockProblem(2 * kMiB, limits).empty());
  const std::string problem = LockProblem(64 * kMiB, limits);
  CHECK_THAT(problem, ContainsSubstring("64 MiB more are needed"));
  CHECK_THAT(problem, ContainsSubstring("2048 KiB are left of RLIMIT_MEMLOCK, 8192 KiB"));
  for (const char* cure : {"ulimit -l unlimited", "LimitMEMLOCK=infinity", "--ulimit memlock=-1"}) {
    CHECK_THAT(problem, ContainsSubstring(cure));
  }
  limits.pinned_bytes = 100 * kMiB;  // pinned before the limit was lowered
  CHECK_THAT(LockProblem(1, limits), ContainsSubstring("0 KiB are left"));
  limits.exempt = true;
  CHECK(LockProblem(64 * kMiB, limits).empty());
}

TEST_CASE("a hard limit that would do is named", "[verbs][machine]") {
  LockLimits limits;
  limits.bytes_max = 8 * kMiB;
  CHECK_THAT(LockProblem(64 * kMiB, limits), ContainsSubstring("ulimit -S -l unlimited"));
  limits.bytes_max_hard = 128 * kMiB;
  CHECK_THAT(LockProblem(64 * kMiB, limits), ContainsSubstring("ulimit -S -l 131072 in the shell"));
  limits.bytes_max_hard = 32 * kMiB;
  CHECK_THAT(LockProblem(64 * kMiB, limits), ContainsSubstring("limits.conf"));
  limits.pinned_bytes = 200 * kMiB;
  CHECK_THAT(LockProblem(64 * kMiB, limits), ContainsSubstring("limits.conf"));
}

TEST_CASE("the right to lock counts in the machine's own user namespace only", "[verbs][machine]") {
  const std::string machine = "         0          0 4294967295\n";
  LockLimits limits;
  ReadLockFacts("VmPin:\t    2048 kB\nCapEff:\t000001ffffffffff\n", machine, limits);
  CHECK(limits.exempt);
  CHECK(limits.pinned_bytes == 2 * kMiB);
  ReadLockFacts("CapEff:\t000001ffffffffff\n", "0 100000 65536\n", limits);
  CHECK_FALSE(limits.exempt);
  ReadLockFacts("CapEff:\t0000000000000000\n", machine, limits);
  CHECK_FALSE(limits.exempt);
  ReadLockFacts("CapEff:\t0000000000004000\n", "", limits);
  CHECK(limits.exempt);
}

TEST_CASE("the limits of this process are the system's", "[verbs][machine]") {
  rlimit value{};
  REQUIRE(getrlimit(RLIMIT_MEMLOCK, &value) == 0);
  const LockLimits limits = CurrentLockLimits();
  CHECK(limits.bytes_max ==
        (value.rlim_cur == RLIM_INFINITY ? LockLimits::kUnlimited : value.rlim_cur));
  CHECK(limits.bytes_max <= limits.bytes_max_hard);
}

TEST_CASE("each convention of verbs calls becomes a Status", "[verbs][machine]") {
  CHECK(ErrnoReturned("ibv_modify_qp", 0).ok());
  CHECK(ErrnoReturned("ibv_modify_qp", EINVAL).code() == absl::StatusCode::kInvalidArgument);
  CHECK(ErrnoReturned("ibv_modify_qp", -EACCES).code() == absl::StatusCode::kPermissionDenied);
  // What a peer's address that nobody answers for gives.
  CHECK(ErrnoReturned("ibv_modify_qp", ETIMEDOUT).code() == absl::StatusCode::kUnavailable);
  CHECK(ErrnoReturned("ibv_modify_qp", EHOSTUNREACH).code() == absl::StatusCode::kUnavailable);
  errno = ENODEV;
  CHECK(ErrnoReturned("ibv_modify_qp", -1).code() == absl::StatusCode::kUnavailable);
  CHECK(ErrnoSet("ibv_query_gid", 0).ok());
  errno = EOPNOTSUPP;
  CHECK(ErrnoSet("ibv_query_gid", -1).code() == absl::StatusCode::kUnimplemented);
  int object = 0;
  REQUIRE(Made("ibv_alloc_pd", &object).ok());
  CHECK(*Made("ibv_alloc_pd", &object) == &object);
  errno = EMFILE;
  const absl::Status made = Made<int>("ibv_open_device", nullptr).status();
  CHECK(made.code() == absl::StatusCode::kResourceExhausted);
  CHECK_THAT(std::string(made.message()),
             ContainsSubstring("ibv_open_device: ") && ContainsSubstring("ulimit -n"));
  CHECK(*Counted("ibv_poll_cq", 3) == 3);
  CHECK(Counted("ibv_poll_cq", -1).status().code() == absl::StatusCode::kUnavailable);
  CHECK(Counted("ibv_query_gid_table", -EINVAL).status().code() ==
        absl::StatusCode::kInvalidArgument);
}

TEST_CASE("limits are brought into a sensible range", "[verbs][machine]") {
  ibv_device_attr attributes{};
  attributes.max_qp_wr = 1024;
  attributes.max_cqe = -1;
  attributes.max_sge = 30;
  attributes.max_qp_rd_atom = 16;
  attributes.max_qp_init_rd_atom = 1000;
  attributes.max_srq = 5;
  attributes.max_mw = 100;
  attributes.max_mr_size = UINT64_MAX;
  DeviceLimits limits = LimitsOf(attributes, 1 << 30);
  CHECK(limits.qp_wr_max == 1024);
  CHECK(limits.cq_entries_max == 0);
  CHECK(limits.sge_rd_max == 30);
  CHECK(limits.read_depth_initiator == 255);
  CHECK(limits.read_depth_responder == 16);
  CHECK(limits.srq_max == 0);  // none that holds anything
  CHECK(limits.mw_max == 0);   // of the wrong type
  CHECK_FALSE(limits.windows_2b);
  CHECK(limits.mr_bytes_max == UINT64_MAX);
  CHECK(limits.message_bytes_max == 1 << 30);
  attributes.max_srq_wr = 100;
  attributes.max_sge_rd = 1;
  attributes.device_cap_flags = IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  limits = LimitsOf(attributes, 1 << 30);
  CHECK(limits.srq_max == 5);
  CHECK(limits.srq_wr_max == 100);
  CHECK(limits.sge_rd_max == 1);
  CHECK(limits.windows_2b);
  CHECK(limits.mw_max == 100);
}

TEST_CASE("dma-buf is there when a bad descriptor is all that is wrong", "[verbs][machine]") {
  DeviceLimits limits;
  ReadDmabufAnswer(EBADF, limits);
  CHECK(limits.dmabuf);
  CHECK_FALSE(limits.dmabuf_unknown);
  ReadDmabufAnswer(EOPNOTSUPP, limits);
  CHECK_FALSE(limits.dmabuf);
  CHECK_FALSE(limits.dmabuf_unknown);
  ReadDmabufAnswer(EINVAL, limits);
  CHECK_FALSE(limits.dmabuf);
  CHECK(limits.dmabuf_unknown);
}

TEST_CASE("a link's speed is its lanes' times their rate", "[verbs][machine]") {
  CHECK(MbpsOf(2, 128) == 400'000);
  CHECK(MbpsOf(2, 32) == 100'000);
  CHECK(MbpsOf(1, 1) == 2'500);
  CHECK(MbpsOf(0, 32) == 0);
  CHECK(MbpsOf(2, 0) == 0);
}

TEST_CASE("it is said why there is no device, and what to do", "[verbs][machine]") {
  SeenDevices seen;
  CHECK_THAT(WhyMissing(seen), ContainsSubstring("modprobe rdma_rxe"));
  seen.kernel = {"mlx5_0", "mlx5_1"};
  CHECK_THAT(WhyMissing(seen), ContainsSubstring("modprobe ib_uverbs"));
  seen.user_verbs = {"uverbs0", "uverbs1"};
  CHECK_THAT(WhyMissing(seen),
             ContainsSubstring(
                 "no driver for mlx5_0, mlx5_1. Mend it: apt-get install ibverbs-providers"));
  // The one has no file in this container, which is why it is not listed.
  seen.listed = {"mlx5_1"};
  seen.unusable.push_back({"mlx5_0", "/dev/infiniband/uverbs0", ENOENT, ""});
  CHECK_THAT(WhyMissing(seen), !ContainsSubstring("no driver"));
  seen.unusable.clear();
  seen.listed = {"mlx5_0", "mlx5_1"};
  CHECK(WhyMissing(seen).empty());
  seen.unusable.push_back({"mlx5_0", "/dev/infiniband/uverbs0", EACCES, ""});
  CHECK_THAT(WhyMissing(seen), ContainsSubstring("/dev/infiniband/uverbs0: Permission denied") &&
                                   ContainsSubstring("chmod"));
  seen.unusable[0].error = ENOENT;
  CHECK_THAT(WhyMissing(seen), ContainsSubstring("--device=/dev/infiniband/uverbs0"));
  seen.unusable[0] = {"siw0", "/dev/infiniband/uverbs0", 0, "iWARP"};
  CHECK_THAT(WhyMissing(seen), ContainsSubstring("siw0: iWARP"));
  seen.list_error = EPERM;
  CHECK_THAT(WhyMissing(seen), ContainsSubstring("cannot list devices"));
  seen.forked = true;
  CHECK_THAT(WhyMissing(seen), ContainsSubstring("forked"));
}

// A folder that looks like sysfs.
class FakeSysfs {
 public:
  FakeSysfs() {
    std::string name = (fs::temp_directory_path() / "sysfs.XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    root_ = name;
  }
  ~FakeSysfs() { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  void Link(const std::string& path, const std::string& target) {
    fs::create_directories((root_ / path).parent_path());
    fs::create_directories(root_ / target);
    fs::create_directory_symlink(root_ / target, root_ / path);
  }
  std::string root() const { return root_.string(); }

 private:
  fs::path root_;
};

TEST_CASE("a device's node is that of its PCI function", "[verbs][machine]") {
  FakeSysfs sysfs;
  sysfs.Write("devices/pci/0000:17:00.0/numa_node", "1\n");
  sysfs.Link("class/infiniband/mlx5_0/device", "devices/pci/0000:17:00.0");
  CHECK(NumaNodeOf("mlx5_0", sysfs.root()) == 1);
  CHECK(NumaNodeOf("mlx5_1", sysfs.root()) == -1);
  CHECK(KernelDevices(sysfs.root()) == std::vector<std::string>{"mlx5_0"});
  sysfs.Write("class/infiniband_verbs/abi_version", "6\n");
  sysfs.Write("class/infiniband_verbs/uverbs0/ibdev", "mlx5_1\n");
  sysfs.Write("class/infiniband_verbs/uverbs1/ibdev", "mlx5_0\n");
  CHECK(UserVerbsOf("mlx5_0", sysfs.root()) == "uverbs1");
  CHECK(UserVerbsOf("mlx5_2", sysfs.root()).empty());
}

TEST_CASE("a soft device is where its network interface is", "[verbs][machine]") {
  FakeSysfs sysfs;
  sysfs.Write("class/infiniband/rxe0/parent", "eth0\n");
  sysfs.Write("devices/pci/0000:00:03.0/numa_node", "2\n");
  sysfs.Link("class/net/eth0/device", "devices/pci/0000:00:03.0/virtio0");
  CHECK(NetdevOf("rxe0", 1, sysfs.root()) == "eth0");
  CHECK(NumaNodeOf("rxe0", sysfs.root()) == 2);
  sysfs.Write("devices/pci/0000:00:03.0/numa_node", "-1\n");
  CHECK(NumaNodeOf("rxe0", sysfs.root()) == -1);
  // An interface without hardware below it.
  sysfs.Write("class/infiniband/rxe1/ports/1/gid_attrs/ndevs/0", "veth0\n");
  CHECK(NetdevOf("rxe1", 1, sysfs.root()) == "veth0");
  CHECK(NumaNodeOf("rxe1", sysfs.root()) == -1);
}

TEST_CASE("hardware counters are numbers by name", "[verbs][machine]") {
  FakeSysfs sysfs;
  const std::string port = "class/infiniband/mlx5_0/ports/1/";
  sysfs.Write(port + "hw_counters/rnr_nak_retry_err", "7\n");
  sysfs.Write(port + "hw_counters/lifespan", "10\n");
  sysfs.Write(port + "counters/port_xmit_data", "18446744073709551615\n");
  sysfs.Write(port + "counters/broken", "N/A\n");
  const std::map<std::string, uint64_t> counters = HardwareCounters("mlx5_0", 1, sysfs.root());
  CHECK(counters ==
        std::map<std::string, uint64_t>{{"rnr_nak_retry_err", 7}, {"port_xmit_data", UINT64_MAX}});
  CHECK(HardwareCounters("mlx5_0", 2, sysfs.root()).empty());
}

TEST_CASE("RNR events and retries are found by the names of each driver", "[verbs][machine]") {
  // Soft-RoCE.
  PortTrouble trouble = TroubleIn({{"sent_pkts", 1000},
                                   {"rcvd_rnr_err", 1},
                                   {"send_rnr_err", 2},
                                   {"retry_rnr_exceeded_err", 4},
                                   {"completer_retry_err", 8},
                                   {"retry_exceeded_err", 16}});
  CHECK(trouble.rnr == 7);
  CHECK(trouble.retries == 8);
  // mlx5.
  trouble = TroubleIn({{"rnr_nak_retry_err", 1},
                       {"out_of_buffer", 2},
                       {"local_ack_timeout_err", 4},
                       {"packet_seq_err", 8},
                       {"implied_nak_seq_err", 16},
                       {"out_of_sequence", 32},
                       {"port_xmit_data", 1000}});
  CHECK(trouble.rnr == 3);
  CHECK(trouble.retries == 28);
  trouble = TroubleIn({{"rnr_naks_rcvd", 5}, {"to_retransmits", 1}, {"seq_err_naks_rcvd", 2}});
  CHECK(trouble.rnr == 5);
  CHECK(trouble.retries == 3);
  // What is not counted is not 0.
  trouble = TroubleIn({{"port_xmit_data", 1000}});
  CHECK_FALSE(trouble.rnr.has_value());
  CHECK_FALSE(trouble.retries.has_value());
}

}  // namespace
}  // namespace verbena::fabric::verbs
