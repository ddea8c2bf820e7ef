#pragma once
// The line ping-pong: how long one cache line takes to another core and back. On virtual machines
// two virtual cores move between sharing and not sharing a physical neighbourhood within seconds,
// and every shared-memory number moves with them, so each window is classified by the line time
// around it and compared only inside its class.
namespace verbena::benchmarks {

// near = 60-105 ns, far = 320-360 ns on the machines seen; the threshold is their geometric middle
// (sqrt(105 * 320) = 183), so that an error of the same factor on either side is tolerated.
inline constexpr double kNearBelowNs = 183;

enum class LineClass { kNear, kFar, kMixed };

inline const char* LineClassName(LineClass c) {
  switch (c) {
    case LineClass::kNear:
      return "near";
    case LineClass::kFar:
      return "far";
    case LineClass::kMixed:
      break;
  }
  return "mixed";
}

// kMixed when the line moved during the window: such a window is dropped.
inline LineClass Classify(double before_ns, double after_ns, double near_below_ns) {
  const bool near_before = before_ns < near_below_ns;
  if (near_before != (after_ns < near_below_ns)) return LineClass::kMixed;
  return near_before ? LineClass::kNear : LineClass::kFar;
}

// Round trip in ns between two cores: median of 9 batches of 500. Pins the calling thread to
// `core_a` and takes 1-2 ms. 0 when the cores are one.
double MeasureLineNs(int core_a, int core_b);

// Pins the calling thread; children inherit it. False when the core does not exist or is not
// allowed.
bool PinToCore(int core);

}  // namespace verbena::benchmarks
