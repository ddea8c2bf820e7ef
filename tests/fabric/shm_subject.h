#pragma once
// Two shm fabrics with the library's own host device.
#include <memory>
#include <utility>

#include "rpc/fabric/available.h"
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

}  // namespace verbena::contract
