#include "rpc/memory/fake_stream.h"

#include <vector>

#include "rpc/memory/fake_device.h"
#include "tests/catch.h"

namespace verbena::memory {
namespace {

FakeDevice& Fake() { return FakeDevice::Install(43); }

TEST_CASE("a stream's work ends in its turn, when it may", "[fake][stream]") {
  FakeStream stream;
  std::vector<int> ran;
  const FakeStream::Flag empty = stream.Record();
  CHECK(empty->load());
  stream.Launch([&] { ran.push_back(1); });
  const FakeStream::Flag first = stream.Record();
  stream.Launch([&] { ran.push_back(2); });
  CHECK((ran.empty() && !first->load() && stream.pending() == 2));
  stream.Finish();
  CHECK(ran == std::vector<int>{1});
  CHECK(first->load());
  // What is queued behind a wait stays there.
  const auto gate = std::make_shared<std::atomic<bool>>(false);
  stream.WaitFor(gate);
  stream.Launch([&] { ran.push_back(3); });
  stream.Finish(2);
  CHECK(ran == std::vector<int>{1, 2});
  gate->store(true);
  stream.Advance();
  CHECK(ran == std::vector<int>{1, 2, 3});
}

TEST_CASE("a fake copy waits for its stream, and the stream for it", "[fake][stream]") {
  const Extent a = *Fake().Allocate(64), b = *Fake().Allocate(64);
  FakeStream stream;
  const int sent = 5;
  int seen = 0;
  stream.Launch([&] { Fake().Write(a.base, &sent, 4); });
  const auto engine = Fake().MakeCopyEngine();
  const CopyPiece piece{b.base, a.base, 64};
  REQUIRE(engine->Copy(1, {&piece, 1}, {&stream}));
  stream.Launch([&] { Fake().Read(&seen, b.base, 4); });
  stream.Finish(2);
  CHECK(seen == 0);
  int ended = 0;
  const auto poll = [&] {
    return engine->Poll(
        SIZE_MAX, [] { return false; }, [&](uint64_t, bool ok) { ended += ok; });
  };
  // And for the test.
  Fake().LetCopies(0);
  CHECK(poll());
  CHECK((ended == 0 && seen == 0));
  Fake().LetCopies(-1);
  CHECK_FALSE(poll());
  CHECK((ended == 1 && seen == sent));
  Fake().Free(a);
  Fake().Free(b);
}

TEST_CASE("what a fake device's stream has written by is seen without asking", "[fake][stream]") {
  FakeStream stream;
  stream.Launch([] {});
  const ReadinessRef after = *Fake().Record({&stream});
  CHECK_FALSE(after->ready());
  CHECK(after->Look().ok());
  stream.Finish();
  CHECK(after->ready());
  CHECK(absl::IsUnimplemented(HostDevice().Record({&stream}).status()));
}

TEST_CASE("a fake device that breaks ends its copies and says why", "[fake][stream]") {
  FakeDevice& fake = FakeDevice::Install(44);
  const Extent a = *fake.Allocate(64);
  FakeStream stream;
  stream.Launch([] {});
  const auto engine = fake.MakeCopyEngine();
  const CopyPiece piece{a.base, a.base + 32, 32};
  REQUIRE(engine->Copy(1, {&piece, 1}, {&stream}));
  const ReadinessRef after = *fake.Record({&stream});
  fake.Break(absl::DataLossError("a page is lost"));
  bool ended = false;
  engine->Poll(
      SIZE_MAX, [] { return false; }, [&](uint64_t, bool ok) { ended = !ok; });
  CHECK(ended);
  CHECK(after->Look().message() == "a page is lost");
  CHECK(absl::IsDataLoss(fake.Record({&stream}).status()));
  fake.Free(a);
}

}  // namespace
}  // namespace verbena::memory
