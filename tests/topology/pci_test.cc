// Distances on the PCI bus, in a made-up sysfs.
#include "rpc/topology/pci.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/catch.h"

namespace verbena::topology {
namespace {

namespace fs = std::filesystem;

// Two processors with a host bridge each. On the first a switch with a GPU and a NIC, and a NIC of
// its own root port; on the second a GPU and a NIC, each of its own root port.
struct Machine {
  Machine() : root(absl::StrCat(fs::temp_directory_path().string(), "/verbena-pci-", getpid())) {
    fs::remove_all(root);
    Add("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:1b:00.0");  // a GPU
    Add("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:04.0/0000:1c:00.0", "mlx5_1");
    Add("pci0000:00/0000:00:03.0/0000:31:00.0", "mlx5_0");
    Add("pci0000:80/0000:80:01.0/0000:9b:00.0");  // another GPU
    Add("pci0000:80/0000:80:03.0/0000:b1:00.0", "mlx5_2");
    // Soft-RoCE has a device that lies on no bus.
    fs::create_directories(root + "/devices/virtual/infiniband/rxe0");
    fs::create_directories(root + "/class/infiniband");
    fs::create_symlink(root + "/devices/virtual/infiniband/rxe0", root + "/class/infiniband/rxe0");
  }
  ~Machine() { fs::remove_all(root); }
  void Add(const std::string& path, const std::string& nic = "") {
    const std::string folder = root + "/devices/" + path;
    fs::create_directories(folder);
    fs::create_directories(root + "/bus/pci/devices");
    fs::create_symlink(folder, root + "/bus/pci/devices/" + fs::path(path).filename().string());
    if (nic.empty()) return;
    fs::create_directories(folder + "/infiniband/" + nic);
    fs::create_symlink(folder, folder + "/infiniband/" + nic + "/device");
    fs::create_directories(root + "/class/infiniband");
    fs::create_symlink(folder + "/infiniband/" + nic, root + "/class/infiniband/" + nic);
  }
  PciPath Nic(const std::string& name) {
    return PathOf(root + "/class/infiniband/" + name + "/device");
  }
  PciPath Gpu(const std::string& address) { return PathOfPci(address, root); }
  const std::string root;
};

TEST_CASE("the NIC behind a GPU's switch is nearest, then that of its host bridge", "[pci]") {
  Machine m;
  const PciPath gpu = m.Gpu("0000:1B:00.0");
  CHECK(gpu ==
        PciPath{"pci0000:00", "0000:00:01.0", "0000:01:00.0", "0000:02:00.0", "0000:1b:00.0"});
  CHECK(m.Nic("mlx5_1").back() == "0000:1c:00.0");
  const std::vector<PciPath> nics = {m.Nic("mlx5_0"), m.Nic("mlx5_1"), m.Nic("mlx5_2")};
  CHECK(NearestPci(gpu, nics) == 1);
  CHECK(NearestPci(m.Gpu("0000:9b:00.0"), nics) == 2);
  const int same_switch = PciDistance(gpu, nics[1]), same_bridge = PciDistance(gpu, nics[0]),
            other = PciDistance(gpu, nics[2]);
  CHECK(same_switch == 4);
  CHECK(same_bridge == kPciHostBridge + 6);
  CHECK(other == kPciProcessors + 8);
  CHECK(PciNearness(same_switch) == "behind one switch");
  CHECK(PciNearness(same_bridge) == "behind one host bridge");
  CHECK(PciNearness(other) == "behind another host bridge");
  CHECK(PciDistance(gpu, gpu) == 0);
}

TEST_CASE("what is on no bus is near to nothing", "[pci]") {
  Machine m;
  CHECK(m.Nic("rxe0").empty());
  CHECK(m.Gpu("0000:ff:00.0").empty());
  CHECK(m.Gpu("").empty());
  const PciPath gpu = m.Gpu("0000:1b:00.0");
  CHECK(PciDistance(gpu, m.Nic("rxe0")) == -1);
  CHECK(NearestPci(gpu, {}) == -1);
  CHECK(NearestPci(gpu, std::vector<PciPath>{m.Nic("rxe0")}) == -1);
  CHECK(NearestPci(gpu, std::vector<PciPath>{m.Nic("rxe0"), m.Nic("mlx5_2")}) == 1);
  CHECK(PciNearness(-1) == "at an unknown distance");
}

TEST_CASE("a device's address space is read from its resources", "[pci]") {
  Machine m;
  const auto says = [&](const std::string& lines) {
    std::ofstream(m.root + "/bus/pci/devices/0000:1b:00.0/resource") << lines;
    return LargestBarBytes("0000:1B:00.0", m.root);
  };
  const std::string registers = "0x00000000c0000000 0x00000000c0ffffff 0x0000000000040200\n",
                    memory = "0x0000380000000000 0x0000383fffffffff 0x000000000014220c\n",
                    none = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
  constexpr uint64_t k256GiB = uint64_t{256} << 30;
  CHECK(says(registers + memory + none) == k256GiB);
  CHECK(says(registers + none + memory + none) == k256GiB);  // registers of 64 bits take two
  CHECK(says(registers + none) == 16 << 20);
  CHECK(says(none + none + none + none + none + none + memory) == 0);  // the ROM's
  CHECK(says("0x1\nnonsense here\n") == 0);
  CHECK(LargestBarBytes("0000:9b:00.0", m.root) == 0);
  CHECK(LargestBarBytes("", m.root) == 0);
}

}  // namespace
}  // namespace verbena::topology
