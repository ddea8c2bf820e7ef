// Real GPUs: what a NIC is told of them, and gets of their memory. No NIC is needed for it.
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "rpc/gpu/driver.h"
#include "rpc/memory/nic_access.h"
#include "tests/catch.h"
#include "tests/gpu/machine/user_memory.h"
#include "verbena/gpu.h"

namespace verbena::gpu_test {
namespace {

TEST_CASE("a GPU says where it is, and its memory is exported as a dma-buf", "[machine][nic]") {
  REQUIRE(UseGpus().ok());
  int count = 0;
  (*gpu::LoadDriver())->cuDeviceGetCount(&count);
  for (int gpu = 0; gpu < count; ++gpu) {
    memory::Device& device = **memory::FindDevice(Device::Cuda(gpu));
    memory::NicAccess* const nic = memory::NicAccessOf(device);
    REQUIRE(nic != nullptr);
    const memory::NicFacts facts = nic->nic_facts();
    WARN("cuda:" << gpu << " at " << facts.pci << ", BAR 1 of " << (facts.window_bytes >> 20)
                 << " MiB, dma-buf " << facts.dma_buf << ", flushes " << facts.flushes
                 << ", writable " << facts.writable);
    CHECK(facts.pci.size() == 12);  // 0000:1b:00.0
    CHECK(facts.window_bytes > 0);
    CHECK(facts.writable);
    CHECK(nic->FlushNicWrites().ok());
    if (!facts.dma_buf) continue;
    for (const char* kind : {"malloc", "library", "virtual"}) {
      INFO(kind);
      const Buffer buffer = UserMemory::Make(kind, gpu, (2 << 20) + 4);
      const auto extents = device.Describe(buffer.data(), buffer.bytes());
      REQUIRE(extents.ok());
      const auto made = device.ExportTo(extents->front(), memory::ExportWay::kDmaBuf);
      INFO(made.status().ToString());
      REQUIRE(made.ok());
      CHECK(made->fd >= 0);
      CHECK(made->offset < 4096);
      CHECK(made->bytes >= buffer.bytes());
      close(made->fd);
    }
  }
}

}  // namespace
}  // namespace verbena::gpu_test
