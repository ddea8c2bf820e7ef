// What an owner does about stages of a link, seen from its own side.
#include <optional>

#include "rpc/fabric/shm/link.h"
#include "rpc/fabric/shm/stage_server.h"
#include "rpc/memory/pool.h"
#include "tests/catch.h"
#include "tests/fabric/fake_region.h"

namespace verbena::fabric::shm {
namespace {

constexpr size_t kBytes = 4096;

// One link, whose peer's segment this test writes.
struct Rig final : StageServer::Owner {
  Rig() {
    link.theirs = *Segment::Create();
    link.mine = *Segment::Create();
    server.Lend(link, {1, 1}, 3, 7, region, region->base(), kBytes);
  }
  void Ask(uint32_t stage) {
    StageRequest& request = link.theirs.desk().requests[stage];
    request.word.store(7);
    request.entry.store(3);
    request.offset.store(0);
    request.bytes.store(kBytes);
    request.sequence.store(++sequence);
    link.theirs.desk().asked.fetch_add(1);
    if (StageServer::Asked(link)) server.Serve(link);
  }
  // Of the last request in it; none: its answer has not come.
  std::optional<Error> Answer(uint32_t stage) {
    while (server.busy()) server.Work(kBytes, [] { return false; });
    const StageAnswer& answer = link.mine.desk().answers[stage];
    if (answer.sequence.load() != link.theirs.desk().requests[stage].sequence.load()) return {};
    return static_cast<Error>(answer.error.load());
  }

  void MakeStages(Link&) override { ++makes; }
  void ShowStages(Link&) override { ++shows; }
  void Answered(Link&) override {}
  Link* LinkOf(LinkId, uint64_t) override { return &link; }

  memory::FakeDevice& device = memory::FakeDevice::Install(5);
  std::shared_ptr<contract::FakeRegion> region = contract::MakeFake(device, kBytes);
  Link link{LinkId{1}};
  StageServer server{*this};
  uint64_t sequence = 0;
  int makes = 0, shows = 0;
};

TEST_CASE("stages that were refused for want of memory are tried again for the next asker",
          "[shm][device]") {
  Rig rig;
  rig.Ask(0);
  REQUIRE(rig.makes == 1);
  CHECK_FALSE(rig.Answer(0));
  // There is no memory.
  rig.server.OnMade(rig.link, memory::Block());
  CHECK(rig.Answer(0) == Error::kNoMemory);
  CHECK(rig.makes == 1);
  // There is some when the peer asks again.
  rig.Ask(0);
  REQUIRE(rig.makes == 2);
  CHECK_FALSE(rig.Answer(0));
  auto block = memory::AllocateBlock(kStages * kStageBytes);
  REQUIRE(block.ok());
  rig.server.OnMade(rig.link, *std::move(block));
  REQUIRE(rig.shows == 1);
  rig.server.OnShown(rig.link, true);
  CHECK(rig.Answer(0) == Error::kOk);
}

TEST_CASE("stages that could not be shown to the peer are shown to the next asker",
          "[shm][device]") {
  Rig rig;
  rig.Ask(0);
  auto block = memory::AllocateBlock(kStages * kStageBytes);
  REQUIRE(block.ok());
  rig.server.OnMade(rig.link, *std::move(block));
  // The peer's side channel is full.
  rig.server.OnShown(rig.link, false);
  CHECK(rig.Answer(0) == Error::kUnsupported);
  rig.Ask(1);
  CHECK(rig.makes == 1);
  REQUIRE(rig.shows == 2);
  rig.server.OnShown(rig.link, true);
  CHECK(rig.Answer(1) == Error::kOk);
}

}  // namespace
}  // namespace verbena::fabric::shm
