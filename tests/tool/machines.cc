#include "tests/tool/machines.h"

namespace verbena::tool {
namespace {

using fabric::verbs::DeviceReport;
using fabric::verbs::GidKind;
using fabric::verbs::GidRow;
using fabric::verbs::PortReport;

DeviceReport Nic(const std::string& name, int node) {
  DeviceReport nic;
  nic.name = name;
  nic.numa_node = node;
  nic.firmware = "28.39.1002";
  nic.iommu = "identity";
  nic.limits.qp_max = 131072;
  nic.limits.qp_wr_max = 32768;
  nic.limits.cq_entries_max = 4194303;
  nic.limits.srq_max = 8388608;
  nic.limits.srq_wr_max = 32767;
  nic.limits.sge_max = nic.limits.sge_rd_max = 30;
  nic.limits.read_depth_initiator = nic.limits.read_depth_responder = 16;
  nic.limits.mr_max = nic.limits.mw_max = 16777216;
  nic.limits.windows_2b = true;
  nic.limits.dmabuf = true;
  nic.limits.inline_bytes_hint = 512;
  nic.limits.mr_bytes_max = UINT64_MAX;
  nic.limits.message_bytes_max = 1 << 30;

  PortReport port;
  port.facts.device = name;
  port.facts.active = true;
  port.facts.state = "PORT_ACTIVE";
  port.facts.ethernet = true;
  port.facts.numa_node = node;
  port.facts.speed_mbps = 400'000;
  port.facts.gid = {0, "GID 3 (::ffff:10.0.0.1, RoCE v2, eth0)"};
  port.facts.pkey = {0, 0xffff, "pkey 0xffff at index 0"};
  port.netdev = "eth0";
  port.mtu = 4096;
  GidRow row;
  row.index = 3;
  row.kind = GidKind::kRoceV2;
  row.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1};
  row.netdev = "eth0";
  row.netdev_up = true;
  port.gids = {row};
  port.pkeys = {0xffff};
  port.counters = {{"rnr_nak_retry_err", 0}, {"port_xmit_data", UINT64_MAX}};
  port.trial = {.ran = true,
                .send = true,
                .read = true,
                .error = "",
                .window = true,
                .window_error = "",
                .bounds_enforced = true};
  nic.ports = {port};
  return nic;
}

}  // namespace

MachineFacts PlainMachine() {
  MachineFacts facts;
  facts.kernel = "6.1.0";
  facts.nodes = {{0, 32, uint64_t{256} << 30, {10, 21}}, {1, 32, uint64_t{256} << 30, {21, 10}}};
  facts.memory.pool_bytes_max = uint64_t{256} << 30;
  facts.memory.transparent = "madvise";
  facts.memory.transparent_shared = "advise";
  facts.memory.pools_huge = true;
  facts.memory.lock.bytes_max = facts.memory.lock.bytes_max_hard = 8 << 20;
  facts.transports = {{"shm", true, "a segment was made"}, {"tcp", true, "a byte went"}};
  facts.verbs.settings = {{"VERBENA_VERBS_DEVICE", "", ""}, {"VERBENA_VERBS_SRQ", "", ""}};
  facts.verbs.missing = {{"the kernel has no RDMA device", "modprobe mlx5_ib"}};
  return facts;
}

MachineFacts NicMachine() {
  MachineFacts facts = PlainMachine();
  facts.memory.lock.bytes_max = facts.memory.lock.bytes_max_hard =
      fabric::verbs::LockLimits::kUnlimited;
  facts.iommu.units = {"dmar0", "dmar1"};
  facts.iommu.modes = {{"identity", 120}};
  facts.iommu.words = {"iommu=pt"};
  facts.verbs.missing.clear();
  facts.verbs.kernel_has_devices = true;
  facts.verbs.devices = {Nic("mlx5_0", 0), Nic("mlx5_1", 1)};
  facts.verbs.choices = {{0, "mlx5_0", 1, 10, "mlx5_0:1 before mlx5_1:1"},
                         {1, "mlx5_1", 1, 10, "mlx5_1:1 before mlx5_0:1"}};
  return facts;
}

MachineFacts GpuMachine() {
  MachineFacts facts = NicMachine();
  facts.gpu.driver = true;
  facts.gpu.driver_version = "580.95.05";
  fabric::verbs::GpuReport gpu;
  gpu.name = "cuda:0";
  gpu.nic.pci = "0000:1b:00.0";
  gpu.nic.dma_buf = true;
  gpu.nic.window_bytes = uint64_t{256} << 30;
  gpu.registered_bytes_max = uint64_t{192} << 30;
  gpu.nearest = gpu.tried = "mlx5_0";
  gpu.distance = 4;
  gpu.trial.ran = gpu.trial.works = true;
  facts.gpu.devices = {gpu};
  return facts;
}

}  // namespace verbena::tool
