#include "benchmarks/harness/report.h"

#include <algorithm>

#include "tests/catch.h"

namespace verbena::benchmarks {
namespace {

SideResult Measured(const Side& side, LineClass c, double value) {
  SideResult result;
  result.side = side;
  result.kept.assign(3, Sample{c, c == LineClass::kNear ? 80.0 : 340.0, 0, 0, value, 2 * value});
  return result;
}

Side Peer(const char* variant, Must must) {
  Side side;
  side.peer = "grpc";
  side.variant = variant;
  side.must = must;
  return side;
}

bool Flagged(const Line& line, const char* flag) {
  return std::find(line.flags.begin(), line.flags.end(), flag) != line.flags.end();
}

TEST_CASE("the best variant of a peer gives the ratio that counts", "[benchmarks]") {
  RowResult result;
  result.row.name = "echo";
  result.ours = Measured(Side(), LineClass::kNear, 300);
  result.peers = {Measured(Peer("slow", Must{0.6, 0.6}), LineClass::kNear, 1000),
                  Measured(Peer("fast", Must{0.6, 0.6}), LineClass::kNear, 400),
                  Measured(Peer("middle", Must{0.6, 0.6}), LineClass::kNear, 500)};
  const std::vector<Line> lines = Compare(result);
  REQUIRE(lines.size() == 3);
  for (const Line& line : lines) REQUIRE(line.best == (line.variant == "fast"));
  REQUIRE(*lines[1].ratio == Approx(0.75));
  REQUIRE(Flagged(lines[1], "must: missed"));
  REQUIRE(Flagged(lines[0], "must: met"));

  // For a rate the largest is the best, and the ratio must be at least the bound.
  result.row.metric = Metric::kRate;
  const std::vector<Line> rates = Compare(result);
  for (const Line& line : rates) REQUIRE(line.best == (line.variant == "slow"));
  REQUIRE(Flagged(rates[0], "must: missed"));
  REQUIRE(Flagged(rates[1], "must: met"));
}

TEST_CASE("classes are never compared with each other", "[benchmarks]") {
  RowResult result;
  result.ours = Measured(Side(), LineClass::kNear, 300);
  result.peers = {Measured(Peer("only", Must{1, 1}), LineClass::kFar, 400)};
  for (const Line& line : Compare(result)) REQUIRE_FALSE(line.ratio.has_value());
}

TEST_CASE("a number that the line has no part in is judged by itself, in no class",
          "[benchmarks]") {
  RowResult result;
  result.row.metric = Metric::kCounter;
  result.row.must_alone = Must{0, 0};
  result.ours = Measured(Side(), LineClass::kNear, 0.5);
  const std::vector<Line> lines = Compare(result);
  REQUIRE(lines.size() == 1);
  REQUIRE(lines[0].line_class == "any");
  REQUIRE(Flagged(lines[0], "must: missed"));
  result.ours = Measured(Side(), LineClass::kNear, 0);
  REQUIRE(Flagged(Compare(result).at(0), "must: met"));
}

TEST_CASE("a number may be better the higher it is", "[benchmarks]") {
  RowResult result;
  result.row.metric = Metric::kGain;
  result.row.must_alone = Must{4, 4};
  result.ours = Measured(Side(), LineClass::kNear, 3.5);
  REQUIRE(Flagged(Compare(result).at(0), "must: missed"));
  result.ours = Measured(Side(), LineClass::kNear, 4);
  REQUIRE(Flagged(Compare(result).at(0), "must: met"));
}

TEST_CASE("a row through a device keeps its windows, in no class", "[benchmarks]") {
  Row row;
  row.device = true;
  Sample busy;
  busy.line_class = LineClass::kNear;
  busy.foreign = 0.8;
  busy.switches = 1000;
  REQUIRE(Kept(row, {busy}, 0.1).size() == 1);
  RowResult result;
  result.row = row;
  result.ours = Measured(Side(), LineClass::kNear, 3);
  REQUIRE(Compare(result).at(0).line_class == "any");
  row.device = false;
  REQUIRE(Kept(row, {busy}, 0.1).empty());
}

TEST_CASE("what could not be measured is a line with its reason", "[benchmarks]") {
  RowResult result;
  result.ours.skipped = "not built";
  SideResult absent;
  absent.side = Peer("cq", Must{1, 1});
  absent.skipped = "not installed";
  result.peers = {absent, Measured(Peer("sync", Must{1, 1}), LineClass::kFar, 400)};
  const std::vector<Line> lines = Compare(result);
  REQUIRE(lines.size() == 2);
  REQUIRE(Flagged(lines[0], "ours: skipped: not built"));
  REQUIRE(*lines[0].peer_value == 400);
  REQUIRE(Flagged(lines[1], "peer: skipped: not installed"));
  // A row with nobody in it still says so.
  result.peers.clear();
  REQUIRE(Flagged(Compare(result).at(0), "ours: skipped: not built"));
}

SideResult Disturbed(const Side& side) {
  SideResult result;
  result.side = side;
  result.dropped = 3;
  return result;
}

TEST_CASE("a side without a number in a class is said there, and once", "[benchmarks]") {
  RowResult result;
  result.ours = Measured(Side(), LineClass::kNear, 300);
  result.peers = {Disturbed(Peer("sync", Must{1, 1})),
                  Measured(Peer("cq", Must{1, 1}), LineClass::kFar, 400)};
  const std::vector<Line> lines = Compare(result);
  REQUIRE(lines.size() == 3);
  REQUIRE(Flagged(lines[0], "peer: no undisturbed window"));
  REQUIRE(Flagged(lines[1], "peer: no window in this class"));
  REQUIRE(Flagged(lines[2], "ours: no window in this class"));
}

TEST_CASE("a variant without a number is no line of the table beside one that has one",
          "[benchmarks]") {
  RowResult result;
  result.row.name = "echo";
  result.ours = Disturbed(Side());
  result.peers = {Disturbed(Peer("sync", Must{1, 1})),
                  Measured(Peer("cq", Must{1, 1}), LineClass::kFar, 400)};
  const std::vector<Line> lines = Compare(result);
  REQUIRE(lines.size() == 2);
  REQUIRE((lines[0].variant == "cq" && lines[0].best));
  REQUIRE((lines[1].variant == "sync" && !lines[1].best));
  REQUIRE(lines[1].dropped == 6);
  REQUIRE(Flagged(lines[1], "ours: no undisturbed window"));
}

TEST_CASE("a run says how many rows lack numbers, and what helps", "[benchmarks]") {
  RowResult result;
  result.row.name = "alone";
  result.ours = Disturbed(Side());
  const std::vector<Line> lines = Compare(result);
  REQUIRE(lines.size() == 1);
  REQUIRE(lines[0].dropped == 3);
  REQUIRE(MissingNumbers(lines).rfind("1 row lacks numbers: ", 0) == 0);
  result.ours = Measured(Side(), LineClass::kNear, 300);
  REQUIRE(MissingNumbers(Compare(result)).empty());
}

TEST_CASE("a JSON line has the agreed fields, null where nothing was measured", "[benchmarks]") {
  Line line;
  line.name = "echo";
  line.peer_value = 2;
  const nlohmann::json json = ToJson(line);
  for (const char* field : {"name", "transport", "payload_bytes", "outstanding", "value", "unit",
                            "peer", "peer_value", "ratio", "class", "p99", "flags"}) {
    REQUIRE(json.contains(field));
  }
  REQUIRE(json["value"].is_null());
  REQUIRE(json["peer_value"] == 2);
}

TEST_CASE("values are printed with a fitting unit", "[benchmarks]") {
  REQUIRE(Readable(412, "ns") == "412 ns");
  REQUIRE(Readable(9300, "ns") == "9.30 us");
  REQUIRE(Readable(10.4e6, "1/s") == "10.40 M/s");
  REQUIRE(Readable(6.9e9, "B/s") == "6.90 GB/s");
  REQUIRE(Readable(15360, "B") == "15.0 KiB");
}

}  // namespace
}  // namespace verbena::benchmarks
