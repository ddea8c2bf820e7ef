// What the doctor finds wrong, and what it says mends it.
#include "rpc/tool/findings.h"

#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/tool/machines.h"

namespace verbena::tool {
namespace {

using Catch::ContainsSubstring;

std::vector<Finding> Problems(const MachineFacts& facts) {
  std::vector<Finding> problems;
  for (const Finding& finding : Examine(facts)) {
    if (finding.problem) problems.push_back(finding);
  }
  return problems;
}

// The only problem of a machine; it must say how to mend it.
Finding TheProblem(const MachineFacts& facts) {
  const std::vector<Finding> problems = Problems(facts);
  REQUIRE(problems.size() == 1);
  CHECK_FALSE(problems[0].cure.empty());
  CHECK(AnyProblem(Examine(facts)));
  return problems[0];
}

std::string Notes(const MachineFacts& facts) {
  std::string text;
  for (const Finding& finding : Examine(facts)) {
    if (!finding.problem) text += finding.area + ": " + finding.text + " | " + finding.cure + "\n";
  }
  return text;
}

TEST_CASE("a machine without RDMA has no problem", "[tool]") {
  CHECK(Problems(PlainMachine()).empty());
  CHECK_FALSE(AnyProblem(Examine(PlainMachine())));
  CHECK(Notes(PlainMachine()) == "verbs: the kernel has no RDMA device | modprobe mlx5_ib\n");
}

TEST_CASE("nothing is said of a machine at the best of health", "[tool]") {
  CHECK(Examine(NicMachine()).empty());
}

TEST_CASE("a device that the kernel has and programs have not is a problem", "[tool]") {
  MachineFacts facts = PlainMachine();
  facts.verbs.kernel_has_devices = true;
  facts.verbs.missing = {{"no driver for mlx5_0", "apt-get install ibverbs-providers"}};
  CHECK(TheProblem(facts).text == "no driver for mlx5_0");
  CHECK(TheProblem(facts).cure == "apt-get install ibverbs-providers");
}

TEST_CASE("a port that is down is a problem where no other is up", "[tool]") {
  MachineFacts facts = NicMachine();
  fabric::verbs::PortReport& port = facts.verbs.devices[0].ports[0];
  port.facts.active = false;
  port.unusable = "the link is not up";
  CHECK(Problems(facts).empty());
  CHECK_THAT(Notes(facts), ContainsSubstring("mlx5_0:1: the link is not up | ip link set eth0 up"));
  facts.verbs.devices.pop_back();
  CHECK(TheProblem(facts).text == "mlx5_0:1: the link is not up");
}

TEST_CASE("the cure of a port is that of its ill", "[tool]") {
  MachineFacts facts = NicMachine();
  facts.verbs.devices.pop_back();
  fabric::verbs::PortReport& port = facts.verbs.devices[0].ports[0];
  port.unusable = "x";
  port.facts.gid.row = -1;
  CHECK_THAT(TheProblem(facts).cure, ContainsSubstring("ip address add"));
  facts.verbs.filter.gid_index = 7;
  CHECK(TheProblem(facts).cure == "unset VERBENA_VERBS_GID_INDEX");
  port.facts.gid.row = 0;
  port.facts.pkey.index = -1;
  CHECK_THAT(TheProblem(facts).cure, ContainsSubstring("partition"));
  facts.verbs.filter.pkey = 0x8001;
  CHECK(TheProblem(facts).cure == "unset VERBENA_VERBS_PKEY");
  port.facts.ethernet = false;
  CHECK_THAT(TheProblem(facts).cure, ContainsSubstring("opensm"));
  port.facts.dead = true;
  CHECK_THAT(TheProblem(facts).cure, ContainsSubstring("restart the process"));
}

TEST_CASE("a filter that names nothing is a problem, one that names one port hides the others",
          "[tool]") {
  MachineFacts facts = NicMachine();
  facts.verbs.filter.device = "mlx5_7";
  CHECK_THAT(TheProblem(facts).text, ContainsSubstring("VERBENA_VERBS_DEVICE=mlx5_7"));
  facts.verbs.filter.device = "mlx5_0";
  facts.verbs.devices[1].ports[0].unusable = "down";
  CHECK(Examine(facts).empty());
  facts.verbs.devices[0].ports[0].unusable = "down";
  CHECK_THAT(TheProblem(facts).text, ContainsSubstring("mlx5_0:1"));
}

TEST_CASE("a device that is demanded where there is none is a problem", "[tool]") {
  MachineFacts facts = PlainMachine();
  facts.verbs.filter.device = "mlx5_7";
  CHECK(TheProblem(facts).text ==
        "VERBENA_VERBS_DEVICE=mlx5_7: no RDMA port is named mlx5_7; there is none");
  CHECK(TheProblem(facts).cure == "unset VERBENA_VERBS_DEVICE");
  // Of a list each name must be one.
  facts = NicMachine();
  facts.verbs.filter.device = "mlx5_0,mlx5_7";
  CHECK_THAT(TheProblem(facts).text, ContainsSubstring("is named mlx5_7; there are: mlx5_0:1"));
}

TEST_CASE("a setting that makes no sense is a problem, with RDMA or without", "[tool]") {
  for (MachineFacts facts : {PlainMachine(), NicMachine()}) {
    facts.verbs.settings[1] = {"VERBENA_VERBS_SRQ", "off", "VERBENA_VERBS_SRQ=off is not 0 or 1"};
    CHECK(TheProblem(facts).text == "VERBENA_VERBS_SRQ=off is not 0 or 1, and verbs is not used");
    CHECK(TheProblem(facts).cure == "unset VERBENA_VERBS_SRQ");
    facts.verbs.settings[1] = {"VERBENA_VERBS_SQR", "0", "no such setting", false};
    CHECK(TheProblem(facts).text == "no such setting");
    CHECK(TheProblem(facts).cure == "unset VERBENA_VERBS_SQR");
  }
}

TEST_CASE("a pattern that does not come back is a problem", "[tool]") {
  MachineFacts facts = NicMachine();
  fabric::verbs::PortTrial& trial = facts.verbs.devices[1].ports[0].trial;
  trial.read = trial.window = trial.bounds_enforced = false;
  trial.error = "transport retries";
  CHECK_THAT(TheProblem(facts).text,
             ContainsSubstring("mlx5_1:1: a pattern did not come back by READ: transport retries"));
  CHECK_THAT(TheProblem(facts).cure, ContainsSubstring("ibv_rc_pingpong -d mlx5_1 -i 1 -g 3;"));
  trial.send = false;
  CHECK_THAT(TheProblem(facts).text, ContainsSubstring("by SEND"));
  CHECK(Notes(facts).empty());
}

TEST_CASE("windows that do not work, or do not hold, are notes", "[tool]") {
  MachineFacts facts = NicMachine();
  fabric::verbs::PortTrial& trial = facts.verbs.devices[0].ports[0].trial;
  trial.bounds_enforced = false;
  CHECK(Problems(facts).empty());
  CHECK_THAT(Notes(facts), ContainsSubstring("READ past the end") &&
                               ContainsSubstring("VERBENA_VERBS_REVOCATION=lease-mr"));
  trial.window = false;
  trial.window_error = "a window's bind: local QP operation error";
  CHECK(Problems(facts).empty());
  CHECK_THAT(Notes(facts), ContainsSubstring("windows do not work") &&
                               ContainsSubstring("a window's bind: local") &&
                               !ContainsSubstring("past the end"));
}

TEST_CASE("locked memory is a problem where there is RDMA and too little to begin with", "[tool]") {
  MachineFacts facts = NicMachine();
  fabric::verbs::LockLimits& lock = facts.memory.lock;
  lock.bytes_max = lock.bytes_max_hard = 8 << 20;
  const Finding problem = TheProblem(facts);
  CHECK(problem.area == "memlock");
  for (const char* cure : {"ulimit -l unlimited", "LimitMEMLOCK=infinity", "--ulimit memlock=-1"}) {
    CHECK_THAT(problem.cure, ContainsSubstring(cure));
  }
  lock.exempt = true;
  CHECK(Examine(facts).empty());
  // Enough to begin with.
  lock.exempt = false;
  lock.bytes_max = lock.bytes_max_hard = uint64_t{4} << 30;
  CHECK(Problems(facts).empty());
  CHECK_THAT(Notes(facts), ContainsSubstring("when the pools have grown"));
  facts.memory.pool_bytes_max = uint64_t{1} << 30;
  CHECK(Examine(facts).empty());
  // Less is needed where the pools are small.
  lock.bytes_max = lock.bytes_max_hard = 64 << 20;
  facts.memory.pool_bytes_max = 32 << 20;
  CHECK(Examine(facts).empty());
}

TEST_CASE("small pages are a note, no memory at all is a problem", "[tool]") {
  MachineFacts facts = NicMachine();
  facts.memory.pools_huge = false;
  CHECK(Problems(facts).empty());
  CHECK_THAT(Notes(facts), ContainsSubstring("shmem_enabled"));
  facts.memory.pools_huge.reset();
  CHECK(TheProblem(facts).area == "memory");
}

TEST_CASE("with a GPU a NIC needs dma-buf or nvidia_peermem", "[tool]") {
  MachineFacts facts = NicMachine();
  facts.gpu.driver = true;
  CHECK(Examine(facts).empty());
  facts.verbs.devices[0].limits.dmabuf = false;
  CHECK_THAT(TheProblem(facts).text, ContainsSubstring("mlx5_0 cannot reach GPU memory"));
  CHECK_THAT(TheProblem(facts).cure, ContainsSubstring("modprobe nvidia_peermem"));
  facts.verbs.devices[0].limits.dmabuf_unknown = true;
  CHECK_THAT(TheProblem(facts).text, ContainsSubstring("unknown"));
  facts.gpu.peermem = true;
  CHECK(Examine(facts).empty());
  facts.gpu = {};
  CHECK(Examine(facts).empty());
}

TEST_CASE("a GPU driver that cannot be used is a problem, one that is not there is none",
          "[tool]") {
  MachineFacts facts = NicMachine();
  facts.gpu.none = "cuda: no driver: libcuda.so.1: No such file or directory";
  CHECK(Examine(facts).empty());
  facts.gpu.unusable = true;
  facts.gpu.none = "cuda: cuInit: CUDA_ERROR_STUB_LIBRARY (the toolkit's stub was found)";
  CHECK_THAT(TheProblem(facts).text,
             ContainsSubstring("driver cannot be used: cuda: cuInit: CUDA_ERROR_STUB_LIBRARY"));
  CHECK_THAT(TheProblem(facts).cure, ContainsSubstring("LD_LIBRARY_PATH"));
  facts.gpu.none = "cuda: the driver does not load: libcuda.so.1: file too short";
  CHECK_THAT(TheProblem(facts).cure, ContainsSubstring("ldconfig -p"));
  facts.gpu.none = "cuda: the driver in libcuda.so.1 has no cuMemGetAccess; 11.4 or later has";
  CHECK_THAT(TheProblem(facts).cure, ContainsSubstring("nvidia-smi"));
}

TEST_CASE("a NIC that does not reach a GPU is a problem, unless it is none", "[tool]") {
  MachineFacts facts = GpuMachine();
  CHECK(Examine(facts).empty());
  fabric::verbs::GpuReport& gpu = facts.gpu.devices[0];
  gpu.trial = {.ran = true, .works = false, .text = "ibv_reg_dmabuf_mr: Bad address"};
  CHECK_THAT(TheProblem(facts).text,
             ContainsSubstring("mlx5_0 does not reach memory of cuda:0, which goes by way of the "
                               "host's: ibv_reg_dmabuf_mr: Bad address"));
  CHECK_THAT(TheProblem(facts).cure, ContainsSubstring("dmesg"));
  gpu.nic.dma_buf = false;
  CHECK_THAT(TheProblem(facts).cure, ContainsSubstring("modprobe nvidia_peermem"));
  facts.verbs.devices[0].soft = true;
  CHECK(Problems(facts).empty());
  gpu.trial = {.ran = false, .works = false, .text = "there is no RDMA device"};
  facts.verbs.devices[0].soft = false;
  CHECK(Problems(facts).empty());
}

TEST_CASE("what a GPU shows NICs, and how far they are, are notes", "[tool]") {
  MachineFacts facts = GpuMachine();
  facts.gpu.devices[0].nic.window_bytes = 256 << 20;
  CHECK_THAT(Notes(facts), ContainsSubstring("cuda:0 shows NICs only 256 MiB"));
  CHECK_THAT(Notes(facts), ContainsSubstring("Resizable BAR"));
  facts = GpuMachine();
  facts.gpu.devices[0].distance = topology::kPciProcessors + 5;
  CHECK_THAT(Notes(facts), ContainsSubstring("mlx5_0, is behind another host bridge"));
  facts = GpuMachine();
  facts.gpu.devices[0].nic.flushes = true;
  CHECK(Notes(facts).empty());
  facts.gpu.devices[0].nic.writable = false;
  CHECK_THAT(Notes(facts), ContainsSubstring("cannot flush it"));
  CHECK(Problems(facts).empty());
}

TEST_CASE("translated DMA is a note", "[tool]") {
  MachineFacts facts = NicMachine();
  facts.verbs.devices[0].iommu = "DMA-FQ";
  CHECK(Problems(facts).empty());
  CHECK_THAT(Notes(facts), ContainsSubstring("mlx5_0's DMA is translated (DMA-FQ)") &&
                               ContainsSubstring("iommu=pt"));
}

TEST_CASE("a reactor whose NIC is far is a note", "[tool]") {
  MachineFacts facts = NicMachine();
  facts.verbs.choices[1] = {1, "mlx5_0", 1, 21, "why"};
  CHECK(Problems(facts).empty());
  CHECK_THAT(Notes(facts), ContainsSubstring("reactors of node 1 use mlx5_0") &&
                               ContainsSubstring("distance 21"));
}

TEST_CASE("what a device lacks is a note", "[tool]") {
  MachineFacts facts = NicMachine();
  facts.verbs.devices[0].limits.srq_max = 0;
  facts.verbs.devices[0].limits.windows_2b = false;
  facts.verbs.devices[0].limits.read_depth_responder = 1;
  facts.verbs.devices[0].soft = true;
  CHECK(Problems(facts).empty());
  for (const char* lack :
       {"no shared receive queues", "no memory windows", "at most 1 READs", "soft-RoCE"}) {
    CHECK_THAT(Notes(facts), ContainsSubstring(lack));
  }
}

TEST_CASE("a transport that does not work is a problem", "[tool]") {
  MachineFacts facts = PlainMachine();
  facts.transports[0] = {"shm", false, "memfd_create: Operation not permitted"};
  CHECK_THAT(TheProblem(facts).text, ContainsSubstring("memfd_create"));
  CHECK(TheProblem(facts).area == "shm");
  facts.transports[0].usable = true;
  facts.transports[1].usable = false;
  CHECK(TheProblem(facts).cure == "ip link set lo up");
}

TEST_CASE("problems come before notes", "[tool]") {
  MachineFacts facts = NicMachine();
  facts.verbs.devices[0].soft = true;
  facts.transports[0].usable = false;
  const std::vector<Finding> findings = Examine(facts);
  REQUIRE(findings.size() == 2);
  CHECK(findings[0].problem);
  CHECK_FALSE(findings[1].problem);
}

TEST_CASE("words of the kernel's files are taken apart", "[tool]") {
  CHECK(ChosenWord("always [madvise] never") == "madvise");
  CHECK(ChosenWord("always madvise").empty());
  CHECK(IommuWords("quiet intel_iommu=on iommu=pt pci=noacs root=/dev/sda\n") ==
        std::vector<std::string>{"intel_iommu=on", "iommu=pt", "pci=noacs"});
}

}  // namespace
}  // namespace verbena::tool
