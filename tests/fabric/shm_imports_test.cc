// Memory of a peer is mapped while it is needed, and once.
#include <cstdio>
#include <fstream>
#include <string>

#include "rpc/fabric/shm/shm_fabric.h"
#include "rpc/memory/pool.h"
#include "tests/contract/fabric_contract.h"
#include "tests/contract/setup_thread.h"

namespace verbena::contract {
namespace {

constexpr Lane kReader{0, LaneRole::kReader, 1};
constexpr Lane kOwner{0, LaneRole::kOwner, 1};
constexpr LinkId kFirst{0}, kSecond{1};
constexpr size_t kBytes = 4 << 20;

Subject OverHostMemory() {
  Subject subject;
  subject.name = "shm";
  subject.one_host = true;
  subject.make = [](std::unique_ptr<fabric::Fabric>& client,
                    std::unique_ptr<fabric::Fabric>& server, std::shared_ptr<void>& keep) {
    auto setup = std::make_shared<SetupThread>();
    fabric::shm::ShmOptions options;
    options.host = &memory::HostDevice();
    options.post_setup = [thread = setup.get()](SetupThread::Job job) {
      thread->Post(std::move(job));
    };
    client = std::make_unique<fabric::shm::ShmFabric>(options);
    server = std::make_unique<fabric::shm::ShmFabric>(options);
    keep = setup;
  };
  return subject;
}

// Read-only mappings of slabs in this process, which plays both ends, and what of them is resident.
struct Mapped {
  int count = 0;
  size_t resident = 0;
};
Mapped ReadOnlySlabs() {
  Mapped mapped;
  std::ifstream file("/proc/self/smaps");
  bool ours = false;
  for (std::string line; std::getline(file, line);) {
    size_t kib = 0;
    if (line.find("memfd:") != std::string::npos || line.find('-') < 20) {
      ours = line.find("r--s") != std::string::npos &&
             line.find("memfd:verbena-slab") != std::string::npos;
      mapped.count += ours;
    } else if (ours && sscanf(line.c_str(), "Rss: %zu kB", &kib) == 1) {
      mapped.resident += kib << 10;
    }
  }
  return mapped;
}

struct Scene {
  Subject subject = OverHostMemory();
  Pair pair{subject};
  std::vector<std::byte> into = std::vector<std::byte>(kBytes);
  uint32_t reads = 0;

  Error Read(LinkId link, const fabric::RemoteKey& key, size_t bytes) {
    const ReadSlot slot{++reads, 1};
    const fabric::LocalPiece piece{&memory::HostDevice(), into.data(), bytes};
    pair.client().Read(slot, link, kReader, key, 0, {&piece, 1});
    auto& answers = pair.client_events.reads[slot.word()];
    REQUIRE(pair.Until([&] { return !answers.empty(); }));
    return answers[0];
  }
  // As reactors do that have nothing else: what wakes them is looked at.
  bool UntilIdle(absl::FunctionRef<bool()> done) {
    return pair.Until([&] {
      for (fabric::Fabric* fabric : {&pair.client(), &pair.server()}) {
        fabric->Arm();
        fabric->Disarm();
      }
      return done();
    });
  }
};

memory::PoolOptions KeepsNothing() {
  memory::PoolOptions options;
  options.bytes_max = 64 << 20;
  options.first_slab_bytes = 2 << 20;
  options.slab_bytes_max = 2 << 20;
  options.large_bytes = 1 << 20;
  options.kept_bytes_max = 0;
  return options;
}

TEST_CASE("a peer's slab is mapped at its first READ, once for all links, until it is withdrawn",
          "[shm][imports]") {
  Scene scene;
  Pair& pair = scene.pair;
  pair.Connect(kFirst);
  pair.Connect(kSecond);
  memory::SlabPool pool(KeepsNothing());
  memory::Block block = *pool.Allocate(kBytes);
  Fill(block.data(), kBytes, 5);
  const auto lease = [&](LeaseSlot slot, LinkId link) {
    return LeaseNow(pair, pair.server(), pair.server_events, slot, link, kOwner, block.region(), 0,
                    kBytes);
  };
  const fabric::RemoteKey first = lease({1, 1}, kFirst), second = lease({2, 1}, kSecond);
  // Exported and announced, and not needed yet.
  CHECK(scene.UntilIdle([&] { return true; }));
  pair.Settle();
  CHECK(ReadOnlySlabs().count == 0);
  // A small READ maps it, without its pages.
  REQUIRE(scene.Read(kFirst, first, 4096) == Error::kOk);
  CHECK(ReadOnlySlabs().count == 1);
  CHECK(ReadOnlySlabs().resident <= kBytes / 2);  // a huge page at most
  // Another link to the same memory uses the same mapping; a large READ has it faulted in first.
  REQUIRE(scene.Read(kSecond, second, kBytes) == Error::kOk);
  CHECK(Filled(scene.into.data(), kBytes, 5));
  CHECK(ReadOnlySlabs().count == 1);
  CHECK(ReadOnlySlabs().resident == kBytes);
  // Its owner frees it. Expect: its readers let it go, with no traffic on the links.
  pair.server().Revoke({1, 1});
  pair.server().Revoke({2, 1});
  REQUIRE(pair.Until([&] { return pair.server_events.revoked.size() == 2; }));
  block.Reset();
  CHECK(pool.stats().slab_bytes == 0);
  CHECK(scene.UntilIdle([] { return ReadOnlySlabs().count == 0; }));
  CHECK(scene.Read(kFirst, first, 4096) == Error::kLeaseLost);
  // And the links go on, with the next slab.
  block = *pool.Allocate(kBytes);
  Fill(block.data(), kBytes, 6);
  const fabric::RemoteKey third = lease({3, 1}, kFirst);
  REQUIRE(scene.Read(kFirst, third, kBytes) == Error::kOk);
  CHECK(Filled(scene.into.data(), kBytes, 6));
  pair.server().Revoke({3, 1});
  REQUIRE(pair.Until([&] { return pair.server_events.revoked.size() == 3; }));
}

TEST_CASE("mappings of a peer's memory end with its links", "[shm][imports]") {
  memory::SlabPool pool(KeepsNothing());
  memory::Block block = *pool.Allocate(kBytes);
  {
    Scene scene;
    Pair& pair = scene.pair;
    pair.Connect(kFirst);
    const fabric::RemoteKey key = LeaseNow(pair, pair.server(), pair.server_events, {1, 1}, kFirst,
                                           kOwner, block.region(), 0, kBytes);
    REQUIRE(scene.Read(kFirst, key, kBytes) == Error::kOk);
    CHECK(ReadOnlySlabs().count == 1);
    pair.client().Close(kFirst);
    REQUIRE(pair.Until([&] { return !pair.client_events.down[kFirst].empty(); }));
    CHECK(pair.Until([] { return ReadOnlySlabs().count == 0; }));
    REQUIRE(pair.Until([&] { return !pair.server_events.down[kFirst].empty(); }));
  }
}

}  // namespace
}  // namespace verbena::contract
