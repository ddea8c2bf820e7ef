// Raw sockets as a peer. Workloads: ping_pong (payload_bytes there and back), stream (a large
// payload pulled from the server by 1 MiB sends into a 1 MiB buffer, both ends polled: 64 KiB
// blocking sends reach little more than half of this), stream_all (the same between memories as
// large as the payload, as a tensor's are: the 1 MiB of stream stays in the caches), vm_readv
// (payload pulled out of the server's memory by process_vm_readv).
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/harness/huge_memory.h"
#include "benchmarks/peers/raw/sockets.h"

namespace verbena::benchmarks {
namespace {

constexpr size_t kChunkBytes = 1 << 20;
// Payloads asked for ahead, so that the stream never pauses between two of them.
constexpr int kPayloadsAhead = 2;

void AnswerPings(int fd, size_t bytes) {
  std::vector<char> message(bytes);
  while (ReceiveOrSleep(fd, message.data(), bytes) && SendSpinning(fd, message.data(), bytes)) {
  }
}

// Sends `bytes` for each request, again and again out of `memory_bytes`.
void StreamFrom(int fd, size_t bytes, size_t memory_bytes) {
  const HugeMemory source(memory_bytes);
  std::memset(source.data(), 'x', memory_bytes);
  char request = 0;
  while (ReceiveOrSleep(fd, &request, 1)) {
    for (size_t left = bytes; left > 0;) {
      const size_t n = std::min(left, kChunkBytes);
      const size_t at = (bytes - left) % memory_bytes;
      if (!SendSpinning(fd, reinterpret_cast<const char*>(source.data()) + at, n)) return;
      left -= n;
    }
  }
}

void StreamOnRequest(int fd, size_t bytes) { StreamFrom(fd, bytes, kChunkBytes); }
void StreamAllOnRequest(int fd, size_t bytes) {
  StreamFrom(fd, bytes, std::max(bytes, kChunkBytes));
}

// Where the payload lies, for the reader.
struct Location {
  int64_t pid;
  uint64_t address;
};

void ShowMemory(int fd, size_t bytes) {
  const HugeMemory memory(bytes);
  std::memset(memory.data(), 'x', bytes);
  const Location location{getpid(), reinterpret_cast<uintptr_t>(memory.data())};
  SendSpinning(fd, reinterpret_cast<const char*>(&location), sizeof(location));
  char end = 0;
  ReceiveOrSleep(fd, &end, 1);  // until the client goes
}

absl::StatusOr<std::unique_ptr<Service>> StartService(const Params& params) {
  std::string address;
  const auto listener = Listen(params, &address);
  if (!listener.ok()) return listener.status();
  const std::string workload = params.workload();
  void (*serve)(int, size_t) = workload == "ping_pong"    ? AnswerPings
                               : workload == "stream"     ? StreamOnRequest
                               : workload == "stream_all" ? StreamAllOnRequest
                               : workload == "vm_readv"   ? ShowMemory
                                                          : nullptr;
  if (!serve) return absl::InvalidArgumentError("no raw workload called " + workload);
  std::thread([fd = *listener, serve, bytes = params.payload_bytes()] {
    const int connection = AcceptOne(fd);
    if (connection >= 0) serve(connection, bytes);
  }).detach();  // ends with the process
  return std::make_unique<AddressOnly>(address);
}

absl::Status Closed() { return absl::UnavailableError("the server closed the socket"); }

class PingPong final : public Workload {
 public:
  PingPong(int fd, size_t bytes) : fd_(fd), message_(bytes, 'x') {}
  absl::Status Run(Window& window) override {
    while (!window.Over()) {
      const uint64_t start = Ticks();
      if (!SendSpinning(fd_, message_.data(), message_.size()) ||
          !ReceiveSpinning(fd_, message_.data(), message_.size())) {
        return Closed();
      }
      window.AddLatency(Ticks() - start);
    }
    return absl::OkStatus();
  }

 private:
  int fd_;
  std::vector<char> message_;
};

class Stream final : public Workload {
 public:
  // Into `memory_bytes`, again and again.
  Stream(int fd, size_t bytes, size_t memory_bytes)
      : fd_(fd), bytes_(bytes), memory_(memory_bytes) {}
  absl::Status Run(Window& window) override {
    int ahead = 0;
    const char request = 1;
    while (ahead < kPayloadsAhead && SendSpinning(fd_, &request, 1)) ++ahead;
    for (; ahead > 0; --ahead) {
      for (size_t left = bytes_; left > 0;) {
        const size_t n = std::min(left, kChunkBytes);
        const size_t at = (bytes_ - left) % memory_.bytes();
        if (!ReceiveSpinning(fd_, reinterpret_cast<char*>(memory_.data()) + at, n)) return Closed();
        left -= n;
      }
      window.AddOperations(1);
      window.AddBytes(bytes_);
      if (!window.Over() && SendSpinning(fd_, &request, 1)) ++ahead;
    }
    return absl::OkStatus();
  }

 private:
  int fd_;
  size_t bytes_;
  HugeMemory memory_;
};

class VmReadv final : public Workload {
 public:
  VmReadv(Location location, size_t bytes) : location_(location), memory_(bytes) {}
  absl::Status Run(Window& window) override {
    while (!window.Over()) {
      const uint64_t start = Ticks();
      for (size_t done = 0; done < memory_.bytes();) {
        const iovec to{memory_.data() + done, memory_.bytes() - done};
        const iovec from{reinterpret_cast<void*>(location_.address + done), memory_.bytes() - done};
        const ssize_t n = process_vm_readv(static_cast<pid_t>(location_.pid), &to, 1, &from, 1, 0);
        if (n <= 0) return absl::ErrnoToStatus(errno, "process_vm_readv");
        done += static_cast<size_t>(n);
      }
      window.AddLatency(Ticks() - start);
      window.AddBytes(memory_.bytes());
    }
    return absl::OkStatus();
  }

 private:
  Location location_;
  HugeMemory memory_;
};

absl::StatusOr<std::unique_ptr<Workload>> StartWorkload(const Params& params) {
  const auto fd = ConnectTo(params);
  if (!fd.ok()) return fd.status();
  const std::string workload = params.workload();
  const size_t bytes = params.payload_bytes();
  if (workload == "stream") return std::make_unique<Stream>(*fd, bytes, kChunkBytes);
  if (workload == "stream_all") {
    return std::make_unique<Stream>(*fd, bytes, std::max(bytes, kChunkBytes));
  }
  if (workload == "ping_pong") return std::make_unique<PingPong>(*fd, params.payload_bytes());
  Location location{};
  if (!ReceiveSpinning(*fd, reinterpret_cast<char*>(&location), sizeof(location))) return Closed();
  return std::make_unique<VmReadv>(location, params.payload_bytes());
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) {
  return verbena::benchmarks::ParticipantMain(argc, argv, verbena::benchmarks::StartService,
                                              verbena::benchmarks::StartWorkload);
}
