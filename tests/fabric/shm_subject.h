#pragma once
// Two shm fabrics with the library's own host device.
#include <memory>
#include <utility>

#include "rpc/fabric/available.h"
#include "rpc/fabric/shm/shm_fabric.h"
#include "rpc/memory/device.h"
#include "tests/contract/fabric_contract.h"
#include "tests/contract/setup_thread.h"

namespace verbena::contract {

inline Subject ShmSubject() {
  Subject subject;
  subject.name = "shm";
  subject.one_host = true;
  subject.make = [](auto& client, auto& server, std::shared_ptr<void>& keep) {
    auto setup = std::make_shared<SetupThread>();
    fabric::FabricOptions options;
    options.host = &memory::HostDevice();
    options.post_setup = [&thread = *setup](SetupThread::Job job) { thread.Post(std::move(job)); };
    client = std::move(fabric::MakeFabrics(options)[0]);
    server = std::move(fabric::MakeFabrics(options)[0]);
    keep = setup;
  };
  return subject;
}

inline constexpr int64_t kLongNs = 60'000'000'000;

// Links that close, and revocations, wait so long for streams of their peers; so many exports.
inline Subject ShmThatWaits(int64_t held_ns, int64_t revoke_held_ns = kLongNs,
                            uint32_t exports_max = fabric::shm::kExportsMax) {
  Subject subject = ShmSubject();
  subject.make = [=](auto& client, auto& server, std::shared_ptr<void>& keep) {
    auto setup = std::make_shared<SetupThread>();
    fabric::shm::ShmOptions options;
    options.host = &memory::HostDevice();
    options.post_setup = [&thread = *setup](SetupThread::Job job) { thread.Post(std::move(job)); };
    options.held_ns = held_ns;
    options.revoke_held_ns = revoke_held_ns;
    options.exports_max = exports_max;
    client = std::make_unique<fabric::shm::ShmFabric>(options);
    server = std::make_unique<fabric::shm::ShmFabric>(options);
    keep = setup;
  };
  return subject;
}

}  // namespace verbena::contract
