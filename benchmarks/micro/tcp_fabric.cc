// The tcp fabric alone, Send, Read and Poll only, beside raw sockets doing the same work: tells
// whether the fabric is right, whatever the layers above do. Two threads pinned to CPUs 0 and 1.
// Rows are interleaved; windows in which the scheduler took a CPU away more often than that (0) are
// dropped; medians. On a busy machine a window of some milliseconds with a few still says
// something.
//
//   build/release/benchmarks/bench_tcp_fabric [rounds [preemptions]]
#include "rpc/fabric/tcp/tcp_fabric.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/harness/huge_memory.h"
#include "rpc/base/check.h"
#include "tests/contract/lane_listener.h"
#include "tests/contract/plain_device.h"

namespace verbena {
namespace {

constexpr LinkId kLink{0};
constexpr Lane kReader{0, LaneRole::kReader, 1};
constexpr Lane kOwner{0, LaneRole::kOwner, 1};
constexpr uint32_t kFrameBytes = 64;
constexpr int kPings = 1000;
constexpr size_t kBytes = 64 << 20;
constexpr size_t kRawChunk = 1 << 20;

void Pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

double NowUs() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// How often the scheduler took the CPU away from this thread.
long Preemptions() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nivcsw;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

void SendAll(int fd, const std::byte* from, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = send(fd, from, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) from += n, bytes -= static_cast<size_t>(n);
  }
}

void ReceiveAll(int fd, std::byte* to, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = recv(fd, to, bytes, MSG_DONTWAIT);
    if (n > 0) to += n, bytes -= static_cast<size_t>(n);
  }
}

struct Streams {
  int client = -1, server = -1;
};

Streams Connect() {
  const auto address = fabric::tcp::ListenBeside(contract::LaneListener().address());
  VERBENA_CHECK(address.ok());
  Streams streams;
  streams.client = *fabric::tcp::StartConnect(*fabric::tcp::LocalOf(*address));
  streams.server = accept(*address, nullptr, nullptr);
  VERBENA_CHECK(streams.server >= 0);
  fabric::tcp::PrepareSocket(streams.server);
  close(*address);
  return streams;
}

// As the pools': huge pages where possible.
memory::RegionRef MakeRegion() {
  auto memory = std::make_shared<benchmarks::HugeMemory>(kBytes);
  const memory::Extent extent{reinterpret_cast<std::byte*>(memory->data()), kBytes, 1};
  auto region = std::make_shared<memory::Region>(contract::PlainDevice(), extent,
                                                 memory::RegionKind::kSlab, -1, 0);
  auto* raw = region.get();
  return memory::RegionRef(raw, [memory, region](const memory::Region*) mutable {
    region.reset();
    memory.reset();
  });
}

struct Sink final : fabric::EventSink {
  fabric::Fabric* fabric = nullptr;
  bool echo = false;
  uint64_t frames = 0, reads = 0, leases = 0;
  fabric::RemoteKey key;
  void OnFrame(LinkId link, absl::Span<const std::byte> frame) override {
    ++frames;
    fabric::OutFrame out;
    if (!echo || !fabric->AcquireFrame(link, out)) return;
    out.bytes = static_cast<uint32_t>(frame.size());
    fabric->Send(link, {&out, 1});
  }
  void OnSendable(LinkId) override {}
  void OnLeased(LeaseSlot, Error, const fabric::RemoteKey& k) override { key = k, ++leases; }
  void OnRevoked(LeaseSlot) override {}
  void OnReadDone(ReadSlot, Error error) override {
    VERBENA_CHECK(error == Error::kOk);
    ++reads;
  }
  void OnLaneDown(LinkId, Lane, Error) override { VERBENA_CHECK(false); }
  void OnLinkDown(LinkId, const absl::Status&) override {}
};

struct World {
  contract::LaneListener listener;
  fabric::tcp::TcpFabric client{fabric::tcp::TcpOptions{listener.port(), 0}};
  fabric::tcp::TcpFabric server{fabric::tcp::TcpOptions{listener.port(), 0}};
  Streams raw = Connect();
  Sink here, there;
  memory::RegionRef source = MakeRegion();
  memory::RegionRef target = MakeRegion();
  fabric::RemoteKey key;
  const long preemptions_max;

  explicit World(long most) : preemptions_max(most) {
    here.fabric = &client;
    there.fabric = &server;
    there.echo = true;
    memset(source->base(), 1, kBytes);
    memset(target->base(), 2, kBytes);
    Join();
    client.Start(kLink);
    server.Start(kLink);
    auto from_owner = server.PrepareLane(kLink, kOwner);
    auto from_reader = client.PrepareLane(kLink, kReader);
    VERBENA_CHECK(client.CompleteLane(kLink, kReader, *std::move(from_owner)).ok());
    VERBENA_CHECK(server.CompleteLane(kLink, kOwner, *std::move(from_reader)).ok());
    server.Lease({1, 1}, kLink, kOwner, source, source->base(), kBytes);
    while (there.leases == 0) server.Poll(there);
    key = there.key;
  }

  void Join() {
    const Streams streams = Connect();
    fabric::Sockets at_client{.stream = streams.client}, at_server{.stream = streams.server};
    auto from_client = client.Prepare(kLink, fabric::Side::kClient, {});
    auto from_server = server.Prepare(kLink, fabric::Side::kServer, from_client->blob);
    VERBENA_CHECK(server.Complete(kLink, *std::move(from_client), at_server).ok());
    VERBENA_CHECK(client.Complete(kLink, *std::move(from_server), at_client).ok());
  }

  // Runs `work` here while the other CPU serves.
  double Against(const std::function<void()>& serve, const std::function<double()>& work) {
    std::atomic<bool> ready{false};
    long preempted = 0;
    std::thread other([&] {
      Pin(1);
      const long before = Preemptions();
      ready = true;
      serve();
      preempted = Preemptions() - before;
    });
    while (!ready) {
    }
    const long before = Preemptions();
    const double value = work();
    const bool undisturbed = Preemptions() - before <= preemptions_max;
    other.join();
    return undisturbed && preempted <= preemptions_max ? value : -1;
  }

  double Fabric(const std::function<double()>& work) {
    std::atomic<bool> stop{false};
    return Against(
        [&] {
          while (!stop.load(std::memory_order_relaxed)) server.Poll(there);
        },
        [&] {
          const double value = work();
          stop = true;
          return value;
        });
  }

  double FramePings() {
    return Fabric([&] {
      std::vector<double> times;
      for (int i = 0; i < kPings; ++i) {
        const double start = NowUs();
        fabric::OutFrame out;
        VERBENA_CHECK(client.AcquireFrame(kLink, out));
        out.bytes = kFrameBytes;
        client.Send(kLink, {&out, 1});
        for (const uint64_t want = here.frames + 1; here.frames < want;) client.Poll(here);
        times.push_back(NowUs() - start);
      }
      return Median(times);
    });
  }

  double RawPings() {
    std::byte message[kFrameBytes] = {};
    std::byte answer[kFrameBytes] = {};
    return Against(
        [&] {
          for (int i = 0; i < kPings; ++i) {
            ReceiveAll(raw.server, answer, kFrameBytes);
            SendAll(raw.server, answer, kFrameBytes);
          }
        },
        [&] {
          std::vector<double> times;
          for (int i = 0; i < kPings; ++i) {
            const double start = NowUs();
            SendAll(raw.client, message, kFrameBytes);
            ReceiveAll(raw.client, message, kFrameBytes);
            times.push_back(NowUs() - start);
          }
          return Median(times);
        });
  }

  double Reads() {
    return Fabric([&] {
      const uint32_t in_flight = client.traits().reads_in_flight;
      const size_t chunk = client.traits().read_chunk_bytes;
      const double start = NowUs();
      const uint64_t before = here.reads, count = kBytes / chunk;
      for (uint64_t asked = 0; here.reads - before < count;) {
        for (; asked < count && asked - (here.reads - before) < in_flight; ++asked) {
          const fabric::LocalPiece piece{&contract::PlainDevice(), target->base() + asked * chunk,
                                         chunk};
          client.Read({static_cast<uint32_t>(asked), 1}, kLink, kReader, key, asked * chunk,
                      {&piece, 1});
        }
        client.Poll(here);
      }
      return kBytes / (NowUs() - start) / 1e3;
    });
  }

  // `far`: between the whole 64 MiB; else one chunk again and again, which stays in the caches.
  double RawStream(bool far) {
    return Against(
        [&] {
          for (size_t at = 0; at < kBytes; at += kRawChunk) {
            SendAll(raw.server, source->base() + (far ? at : 0), kRawChunk);
          }
        },
        [&] {
          const double start = NowUs();
          for (size_t at = 0; at < kBytes; at += kRawChunk) {
            ReceiveAll(raw.client, target->base() + (far ? at : 0), kRawChunk);
          }
          return kBytes / (NowUs() - start) / 1e3;
        });
  }
};

void Main(int rounds, long preemptions_max) {
  Pin(0);
  World world(preemptions_max);
  std::map<std::string, std::vector<double>> rows;
  for (int i = 0; i < rounds; ++i) {
    const double raw = world.RawPings(), frames = world.FramePings();
    const double near = world.RawStream(false), far = world.RawStream(true), reads = world.Reads();
    rows["1 raw ping-pong, us"].push_back(raw);
    rows["2 frames ping-pong, us"].push_back(frames);
    rows["3 frames / raw"].push_back(frames > 0 && raw > 0 ? frames / raw : -1);
    rows["4 raw stream, one chunk, GB/s"].push_back(near);
    rows["5 raw stream, 64 MiB, GB/s"].push_back(far);
    rows["6 READs, 64 MiB, GB/s"].push_back(reads);
    rows["8 READs / raw stream, 64 MiB"].push_back(reads > 0 && far > 0 ? reads / far : -1);
    rows["7 READs / raw stream, one chunk"].push_back(reads > 0 && near > 0 ? reads / near : -1);
  }
  for (auto& [name, values] : rows) {
    std::erase_if(values, [](double value) { return value < 0; });
    if (values.empty()) values.push_back(0);
    std::sort(values.begin(), values.end());
    printf("%-32s median %.3f  (%.3f .. %.3f) of %zu windows\n", name.c_str(), Median(values),
           values.front(), values.back(), values.size());
  }
}

}  // namespace
}  // namespace verbena

int main(int argc, char** argv) {
  verbena::Main(argc > 1 ? atoi(argv[1]) : 20, argc > 2 ? atol(argv[2]) : 0);
}
