#include "benchmarks/harness/sampling.h"

#include "tests/catch.h"

namespace verbena::benchmarks {
namespace {

Sample At(LineClass c, double switches, double value) {
  Sample s;
  s.line_class = c;
  s.switches = switches;
  s.value = value;
  return s;
}

TEST_CASE("a window belongs to a class only when the line stayed there", "[benchmarks]") {
  REQUIRE(Classify(60, 105, kNearBelowNs) == LineClass::kNear);
  REQUIRE(Classify(320, 360, kNearBelowNs) == LineClass::kFar);
  REQUIRE(Classify(80, 340, kNearBelowNs) == LineClass::kMixed);
  REQUIRE(Classify(340, 80, kNearBelowNs) == LineClass::kMixed);
}

TEST_CASE("disturbed and mixed windows are dropped", "[benchmarks]") {
  const std::vector<Sample> kept = Undisturbed(
      {At(LineClass::kNear, 3, 1), At(LineClass::kNear, kSwitchesMax + 1, 100),
       At(LineClass::kMixed, 3, 100), At(LineClass::kFar, 5, 7), At(LineClass::kNear, 4, 3)});
  REQUIRE(kept.size() == 3);
  REQUIRE(Summarize(kept, LineClass::kNear).windows == 2);
  REQUIRE(Summarize(kept, LineClass::kNear).value == 2);
  REQUIRE(Summarize(kept, LineClass::kFar).value == 7);
}

TEST_CASE("windows in which others used the cores are dropped", "[benchmarks]") {
  Sample shared = At(LineClass::kNear, 3, 100);
  shared.foreign = 0.3;
  REQUIRE(Undisturbed({At(LineClass::kNear, 3, 1), shared}).size() == 1);
  REQUIRE(Undisturbed({At(LineClass::kNear, 3, 1), shared}, 1).size() == 2);
}

TEST_CASE("counts are kept however busy the machine is", "[benchmarks]") {
  Sample shared = At(LineClass::kNear, 3, 100);
  shared.foreign = 0.3;
  Row row;
  row.metric = Metric::kCounter;
  REQUIRE(Kept(row, {shared}, kForeignMax).size() == 1);
  row.metric = Metric::kRate;
  REQUIRE(Kept(row, {shared}, kForeignMax).empty());
}

TEST_CASE("a workload that always switches is judged by its own median", "[benchmarks]") {
  const std::vector<Sample> kept = Undisturbed(
      {At(LineClass::kNear, 900, 1), At(LineClass::kNear, 1000, 1), At(LineClass::kNear, 5000, 9)});
  REQUIRE(kept.size() == 2);
  REQUIRE(Summarize(kept, LineClass::kNear).value == 1);
}

}  // namespace
}  // namespace verbena::benchmarks
