#pragma once
// An owner, and tensors of it fetched to every place of this machine and looked at.
#include <string>
#include <utility>

#include "gpu.verbena.h"
#include "rpc/gpu/driver.h"
#include "tests/catch.h"
#include "tests/gpu/machine/owner.h"
#include "tests/gpu/machine/user_memory.h"
#include "verbena/gpu.h"
#include "verbena/verbena.h"

namespace verbena::gpu_test {

inline int Gpus() {
  static const int gpus = [] {
    REQUIRE(UseGpus().ok());
    int count = 0;
    (*gpu::LoadDriver())->cuDeviceGetCount(&count);
    return count;
  }();
  return gpus;
}

inline ::gpu_test::Wanted Of(const std::string& memory, uint64_t bytes, uint64_t offset = 0,
                             uint32_t seed = 1) {
  ::gpu_test::Wanted wanted;
  wanted.set_memory(memory);
  wanted.set_bytes(bytes);
  wanted.set_offset(offset);
  wanted.set_seed(seed);
  return wanted;
}

struct Reader {
  explicit Reader(const std::string& environment = {}, const std::string& transport = "shm")
      : owner(environment, transport) {
    Gpus();
  }
  Parcel<::gpu_test::Given> Get(const ::gpu_test::Wanted& wanted) {
    auto given = stub.Give(wanted, CallOptions().set_wait_for_ready(true)).Get();
    INFO(given.status().ToString());
    REQUIRE(given.ok());
    return *std::move(given);
  }
  // Fetches to every GPU and to the host.
  void See(const ::gpu_test::Wanted& wanted) {
    INFO(wanted.DebugString());
    auto given = Get(wanted);
    for (int to = -1; to < Gpus(); ++to) {
      const Device where = to < 0 ? Device::Host() : Device::Cuda(to);
      auto tensor = given.Fetch(given->tensor(), where).Get();
      INFO("to " << to << ": " << tensor.status().ToString());
      REQUIRE(tensor.ok());
      CHECK(FirstWrong(where, tensor->data(), tensor->bytes(), wanted.seed()) ==
            (wanted.bytes() + 3) / 4);
    }
  }
  Owner owner;
  ::gpu_test::Owner::Stub stub{owner.channel()};
};

}  // namespace verbena::gpu_test
