// Raw frames over shm, Send and Poll only, beside a bare cache line going there and back: tells
// whether the rings are right, whatever the layers above do. Two threads pinned to CPUs 0 and 1 in
// place of two processes: the same memory is mapped twice either way.
//
//   build/release/benchmarks/bench_shm_frames [frame bytes]
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "rpc/base/check.h"
#include "rpc/fabric/shm/shm_fabric.h"
#include "tests/contract/plain_device.h"

namespace verbena {
namespace {

constexpr LinkId kLink{0};

void Pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Round trips one by one, in blocks of kBlock, so that a median leaves out what the scheduler took.
constexpr int kBlock = 16;
double Median(std::vector<double>& blocks) {
  std::nth_element(blocks.begin(), blocks.begin() + static_cast<ptrdiff_t>(blocks.size() / 2),
                   blocks.end());
  return blocks[blocks.size() / 2];
}

struct Line {
  alignas(64) std::atomic<uint32_t> value{0};
  alignas(64) char padding[64];
};

double LineNs(int rounds) {
  static Line line;
  line.value = 0;
  std::thread other([rounds] {
    Pin(1);
    for (uint32_t i = 1; i < 2 * static_cast<uint32_t>(rounds); i += 2) {
      while (line.value.load(std::memory_order_acquire) != i) {
      }
      line.value.store(i + 1, std::memory_order_release);
    }
  });
  std::vector<double> blocks;
  int64_t start = NowNs();
  for (uint32_t i = 0; i < 2 * static_cast<uint32_t>(rounds); i += 2) {
    line.value.store(i + 1, std::memory_order_release);
    while (line.value.load(std::memory_order_acquire) != i + 2) {
    }
    if (i % (2 * kBlock) != 0) continue;
    const int64_t now = NowNs();
    blocks.push_back(static_cast<double>(now - start) / kBlock);
    start = now;
  }
  other.join();
  return Median(blocks);
}

struct Echo final : fabric::EventSink {
  fabric::Fabric* fabric = nullptr;
  bool reply = false;
  uint64_t frames = 0;
  void OnFrame(LinkId link, absl::Span<const std::byte> frame) override {
    ++frames;
    if (!reply) return;
    fabric::OutFrame out;
    if (!fabric->AcquireFrame(link, out)) return;
    out.bytes = static_cast<uint32_t>(frame.size());
    fabric->Send(link, {&out, 1});
  }
  void OnSendable(LinkId) override {}
  void OnLeased(LeaseSlot, Error, const fabric::RemoteKey&) override {}
  void OnRevoked(LeaseSlot) override {}
  void OnReadDone(ReadSlot, Error) override {}
  void OnLaneDown(LinkId, Lane, Error) override {}
  void OnLinkDown(LinkId, const absl::Status&) override {}
};

double FrameNs(fabric::Fabric& here, fabric::Fabric& there, uint32_t bytes, int rounds) {
  std::atomic<bool> stop{false};
  std::atomic<bool> ready{false};
  std::thread other([&] {
    Pin(1);
    Echo echo;
    echo.fabric = &there;
    echo.reply = true;
    ready = true;
    while (!stop.load(std::memory_order_relaxed)) there.Poll(echo);
  });
  while (!ready) {
  }
  Echo sink;
  std::vector<double> blocks;
  int64_t start = NowNs();
  for (int i = 1; i <= rounds; ++i) {
    fabric::OutFrame out;
    VERBENA_CHECK(here.AcquireFrame(kLink, out));
    out.bytes = bytes;
    here.Send(kLink, {&out, 1});
    const uint64_t want = sink.frames + 1;
    while (sink.frames < want) here.Poll(sink);
    if (i % kBlock != 0) continue;
    const int64_t now = NowNs();
    blocks.push_back(static_cast<double>(now - start) / kBlock);
    start = now;
  }
  stop = true;
  other.join();
  return Median(blocks);
}

void Join(fabric::Fabric& here, fabric::Fabric& there) {
  int fds[2];
  VERBENA_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  fabric::Sockets near, far;
  near.side = fds[0];
  far.side = fds[1];
  auto offer = here.Prepare(kLink, fabric::Side::kClient, {});
  auto answer = there.Prepare(kLink, fabric::Side::kServer, offer->blob);
  VERBENA_CHECK(there.Complete(kLink, *std::move(offer), far).ok());
  VERBENA_CHECK(here.Complete(kLink, *std::move(answer), near).ok());
}

int Main(int argc, char** argv) {
  const uint32_t bytes = argc > 1 ? static_cast<uint32_t>(atoi(argv[1])) : 56;
  Pin(0);
  auto ignore = [](absl::AnyInvocable<void() &&> job) { std::move(job)(); };
  fabric::shm::ShmOptions options;
  options.host = &contract::PlainDevice();
  options.post_setup = ignore;
  fabric::shm::ShmFabric here(options), there(options);
  Join(here, there);
  here.Start(kLink);
  there.Start(kLink);
  for (int i = 0; i < 10; ++i) {
    const double before = LineNs(50'000);
    const double frame = FrameNs(here, there, bytes, 100'000);
    const double after = LineNs(50'000);
    printf("line %4.0f ns   frame of %u bytes %4.0f ns   line %4.0f ns\n", before, bytes, frame,
           after);
  }
  return 0;
}

}  // namespace
}  // namespace verbena

int main(int argc, char** argv) { return verbena::Main(argc, argv); }
