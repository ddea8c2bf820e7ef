#include <algorithm>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "rpc/base/limits.h"
#include "rpc/memory/device.h"
#include "rpc/memory/streaming_copy.h"
#include "tests/catch.h"

namespace verbena::memory {
namespace {

using Bytes = std::vector<std::byte>;
using Done = std::vector<std::pair<uint64_t, bool>>;

Bytes Random(size_t bytes, unsigned seed) {
  std::mt19937_64 random(seed);
  Bytes made(bytes);
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t word = random();
    std::memcpy(made.data() + i, &word, std::min<size_t>(8, bytes - i));
  }
  return made;
}

constexpr auto kNever = [] { return false; };

TEST_CASE("pieces are copied in order and each copy reported once", "[copy]") {
  const auto engine = HostDevice().MakeCopyEngine();
  const Bytes from = Random(100000, 1);
  Bytes to(100000);
  // Odd offsets and sizes, an empty piece, a copy of nothing.
  const CopyPiece first[] = {{to.data() + 1, from.data() + 1, 4999},
                             {to.data(), from.data(), 0},
                             {to.data() + 5000, from.data() + 5000, 3}};
  const CopyPiece second[] = {{to.data() + 5003, from.data() + 5003, 94997}};
  REQUIRE(engine->Copy(11, first, {}));
  REQUIRE(engine->Copy(12, second, {}));
  REQUIRE(engine->Copy(13, {}, {}));
  Done done;
  CHECK_FALSE(
      engine->Poll(SIZE_MAX, kNever, [&](uint64_t tag, bool ok) { done.emplace_back(tag, ok); }));
  CHECK(done == Done{{11, true}, {12, true}, {13, true}});
  CHECK(std::equal(from.begin() + 1, from.end(), to.begin() + 1));
  CHECK_FALSE(engine->Poll(SIZE_MAX, kNever, [&](uint64_t, bool) { FAIL(); }));
}

TEST_CASE("a poll keeps to its budget", "[copy]") {
  const auto engine = HostDevice().MakeCopyEngine();
  const Bytes from = Random(64 << 10, 2);
  Bytes to(64 << 10);
  const CopyPiece piece{to.data(), from.data(), from.size()};
  REQUIRE(engine->Copy(1, absl::MakeConstSpan(&piece, 1), {}));
  CHECK(engine->Poll(10000, kNever, [](uint64_t, bool) { FAIL(); }));
  CHECK(std::equal(from.begin(), from.begin() + 10000, to.begin()));
  CHECK(std::all_of(to.begin() + 10000, to.end(), [](std::byte b) { return b == std::byte{0}; }));
  bool done = false;
  CHECK(engine->Poll(0, kNever, [&](uint64_t, bool) { done = true; }));
  CHECK_FALSE(engine->Poll(from.size() - 10000, kNever, [&](uint64_t, bool) { done = true; }));
  CHECK(done);
  CHECK(from == to);
}

TEST_CASE("a poll looks at its caller's work every 4 to 8 KiB and yields to it", "[copy]") {
  const auto engine = HostDevice().MakeCopyEngine();
  const Bytes from = Random(1 << 20, 3);
  Bytes to(1 << 20);
  const CopyPiece piece{to.data(), from.data(), from.size()};
  REQUIRE(engine->Copy(1, absl::MakeConstSpan(&piece, 1), {}));
  int looks = 0;
  CHECK_FALSE(engine->Poll(
      SIZE_MAX,
      [&] {
        ++looks;
        return false;
      },
      [](uint64_t, bool) {}));
  CHECK(looks >= 128);
  CHECK(looks <= 260);
  REQUIRE(engine->Copy(2, absl::MakeConstSpan(&piece, 1), {}));
  looks = 0;
  CHECK(engine->Poll(
      SIZE_MAX, [&] { return ++looks == 3; }, [](uint64_t, bool) { FAIL(); }));
  CHECK(looks == 3);
}

TEST_CASE("a full queue refuses and takes more after a poll", "[copy]") {
  const auto engine = HostDevice().MakeCopyEngine();
  Bytes from(64), to(64);
  const CopyPiece piece{to.data(), from.data(), 64};
  for (uint32_t i = 0; i < limits::kCopiesInFlightMax; ++i) {
    REQUIRE(engine->Copy(i, absl::MakeConstSpan(&piece, 1), {}));
  }
  CHECK_FALSE(engine->Copy(99, absl::MakeConstSpan(&piece, 1), {}));
  uint64_t next = 0;
  CHECK(engine->Poll(64, kNever, [&](uint64_t tag, bool) { CHECK(tag == next++); }));
  CHECK(engine->Copy(limits::kCopiesInFlightMax, absl::MakeConstSpan(&piece, 1), {}));
  CHECK_FALSE(engine->Poll(SIZE_MAX, kNever, [&](uint64_t tag, bool) { CHECK(tag == next++); }));
  CHECK(next == limits::kCopiesInFlightMax + 1);
}

TEST_CASE("a copy queued from within done follows", "[copy]") {
  const auto engine = HostDevice().MakeCopyEngine();
  const Bytes from = Random(100, 4);
  Bytes to(100);
  const CopyPiece piece{to.data(), from.data(), 100};
  REQUIRE(engine->Copy(1, absl::MakeConstSpan(&piece, 1), {}));
  Done done;
  engine->Poll(SIZE_MAX, kNever, [&](uint64_t tag, bool ok) {
    done.emplace_back(tag, ok);
    if (tag == 1) REQUIRE(engine->Copy(2, absl::MakeConstSpan(&piece, 1), {}));
  });
  CHECK(done == Done{{1, true}, {2, true}});
}

TEST_CASE("a range that cannot be one is reported, not touched", "[copy][hostile]") {
  const auto engine = HostDevice().MakeCopyEngine();
  Bytes to(64);
  const Bytes from(64, std::byte{1});
  const CopyPiece null_from[] = {{to.data(), from.data(), 8}, {to.data(), nullptr, 64}};
  const CopyPiece wraps[] = {{to.data(), from.data(), SIZE_MAX}};
  const CopyPiece good[] = {{to.data() + 32, from.data(), 8}};
  REQUIRE(engine->Copy(1, null_from, {}));
  REQUIRE(engine->Copy(2, wraps, {}));
  REQUIRE(engine->Copy(3, good, {}));
  Done done;
  engine->Poll(SIZE_MAX, kNever, [&](uint64_t tag, bool ok) { done.emplace_back(tag, ok); });
  CHECK(done == Done{{1, false}, {2, false}, {3, true}});
  CHECK(to[0] == std::byte{0});
  CHECK(to[32] == std::byte{1});
}

TEST_CASE("a large transfer in many copies arrives whole", "[copy]") {
  // Above the streaming threshold, as chunks with adjoining destinations, begun at odd addresses.
  const size_t total = 24 << 20;
  constexpr size_t kChunk = 1 << 20;
  const Bytes from = Random(total + 3, 5);
  Bytes to(total + 5);
  const auto engine = HostDevice().MakeCopyEngine();
  size_t queued = 0, done = 0;
  while (done < total / kChunk) {
    while (queued < total / kChunk) {
      const CopyPiece piece{to.data() + 5 + queued * kChunk, from.data() + 3 + queued * kChunk,
                            kChunk};
      if (!engine->Copy(queued, absl::MakeConstSpan(&piece, 1), {})) break;
      ++queued;
    }
    engine->Poll(300000, kNever, [&](uint64_t tag, bool ok) {
      CHECK(ok);
      CHECK(tag == done++);
    });
  }
  CHECK(std::equal(from.begin() + 3, from.end(), to.begin() + 5));
}

TEST_CASE("a streaming copy writes exactly its range, at any alignment", "[copy][streaming]") {
  const Bytes from = Random(1024, 6);
  for (size_t to_at = 0; to_at < 70; to_at += 7) {
    for (size_t from_at = 0; from_at < 70; from_at += 9) {
      for (const size_t bytes : {0, 1, 15, 63, 64, 65, 127, 128, 500, 800}) {
        Bytes to(1024, std::byte{0xee});
        StreamingCopy(to.data() + to_at, from.data() + from_at, bytes);
        StreamingFence();
        Bytes expected(1024, std::byte{0xee});
        std::memcpy(expected.data() + to_at, from.data() + from_at, bytes);
        REQUIRE(to == expected);
      }
    }
  }
}

}  // namespace
}  // namespace verbena::memory
