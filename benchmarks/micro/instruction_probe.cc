// A program whose instructions per call are known roughly, to test the counter:
// `bench_instruction_probe N` makes N calls, each of which works in its own code (kOwnSteps
// dependent multiplications), in a function in namespace google::protobuf, in std::string and in
// malloc.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace google::protobuf {

// Stands for protobuf's code: twice our own work, to be left out by the filter.
[[gnu::noinline]] uint64_t PretendToParse(uint64_t x, int steps) {
  for (int i = 0; i < 2 * steps; ++i) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    asm volatile("" : "+r"(x));
  }
  return x;
}

}  // namespace google::protobuf

namespace {

constexpr int kOwnSteps = 100;

[[gnu::noinline]] uint64_t OwnWork(uint64_t x) {
  for (int i = 0; i < kOwnSteps; ++i) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    asm volatile("" : "+r"(x));
  }
  return x;
}

}  // namespace

int main(int argc, char** argv) {
  const long calls = argc > 1 ? std::atol(argv[1]) : 1000;
  uint64_t x = 1;
  const std::string source(200, 'x');
  std::string text;
  // Through a pointer, so that it is not inlined into main and counted there.
  std::string& (std::string::*volatile assign)(const std::string&) = &std::string::assign;
  for (long i = 0; i < calls; ++i) {
    x = OwnWork(x);
    x = google::protobuf::PretendToParse(x, kOwnSteps);
    (text.*assign)(source);
    void* volatile p = std::malloc(500);
    std::free(p);
  }
  std::printf("%lu %zu\n", static_cast<unsigned long>(x), text.size());
  return 0;
}
