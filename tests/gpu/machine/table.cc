#include "tests/gpu/machine/table.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpu.verbena.h"
#include "rpc/base/check.h"
#include "rpc/gpu/cuda_device.h"
#include "tests/gpu/machine/goals.h"
#include "tests/gpu/machine/kv_table.h"
#include "tests/gpu/machine/owner.h"
#include "tests/gpu/machine/user_memory.h"
#include "verbena/gpu.h"
#include "verbena/verbena.h"

namespace verbena::gpu_test {
namespace {

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

double Microseconds(absl::FunctionRef<void()> work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

// A turn of small ones is long enough for callers and threads to be as they stay.
int TimesFor(size_t bytes) {
  if (bytes >= size_t{128} << 20) return 20;
  return bytes > size_t{256} << 10 ? 300 : 5000;
}

std::string Size(size_t bytes) {
  if (bytes >= size_t{1} << 30) return absl::StrCat(bytes >> 30, " GiB");
  if (bytes >= 1 << 20) return absl::StrCat(bytes >> 20, " MiB");
  return absl::StrCat(bytes >> 10, " KiB");
}

void MakeConnection(int ends[2]) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool connected = bind(listener, generic, length) == 0 && listen(listener, 1) == 0 &&
                         getsockname(listener, generic, &length) == 0 &&
                         connect(ends[0], generic, length) == 0;
  VERBENA_CHECK(connected, "no loopback connection");
  ends[1] = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  close(listener);
}

struct Way {
  const char* name;
  const char* memory;
  int from, to;  // GPUs; -1: the host
  const char* transport = "shm";
};

// Microseconds of each of `times` streams of `bytes` over a loopback connection, from one thread's
// 256 KiB to another's: what a socket does when there is nothing else to do.
std::vector<double> RawStreams(size_t bytes, int times) {
  int ends[2];
  MakeConnection(ends);
  std::vector<char> from(256 << 10), to(256 << 10);
  std::vector<double> microseconds;
  for (int i = 0; i < times; ++i) {
    microseconds.push_back(Microseconds([&] {
      std::thread sender([&] {
        for (size_t left = bytes; left > 0;) {
          left -= static_cast<size_t>(send(ends[0], from.data(), std::min(left, from.size()), 0));
        }
      });
      for (size_t left = bytes; left > 0;) {
        left -= static_cast<size_t>(recv(ends[1], to.data(), std::min(left, to.size()), 0));
      }
      sender.join();
    }));
  }
  close(ends[0]);
  close(ends[1]);
  return microseconds;
}

class Table {
 public:
  explicit Table(const char* transport) : owner_({}, transport) {}
  struct Times {
    double first_us = 0, fetch_us = 0, call_us = 0, raw_us = 0;
  };
  Times Measure(const Way& way, size_t bytes) {
    ::gpu_test::Wanted wanted;
    wanted.set_memory(way.memory);
    wanted.set_gpu(std::max(way.from, 0));
    wanted.set_bytes(bytes);
    const Device where = way.to < 0 ? Device::Host() : Device::Cuda(way.to);
    const Shape shape(static_cast<int64_t>(bytes));
    const Placement into = Placement::Into(*Tensor::Empty(kUInt8, shape, where));
    auto given = stub_.Give(wanted, CallOptions().set_wait_for_ready(true)).Get();
    VERBENA_CHECK(given.ok(), given.status().ToString());
    Path path = Path::kNone;
    const auto fetch = [&](Parcel<::gpu_test::Given>& from) {
      auto call = from.Fetch(from->tensor(), into);
      auto tensor = call.Get();
      VERBENA_CHECK(tensor.ok(), tensor.status().ToString());
      path = call.report().path;
    };
    const double first = Microseconds([&] { fetch(*given); });
    std::vector<double> ours, calls, raw;
    // In turns, so that whatever else the machine does meets all of them.
    for (int round = 0; round < 5; ++round) {
      const int times = std::max(TimesFor(bytes) / 5, 4);
      for (int i = 0; i < times; ++i) ours.push_back(Microseconds([&] { fetch(*given); }));
      for (int i = 0; i < times; ++i) {
        calls.push_back(Microseconds([&] {
          auto reply = stub_.GiveAgain(wanted).Get();
          VERBENA_CHECK(reply.ok(), reply.status().ToString());
          fetch(*reply);
        }));
      }
      const std::vector<double> more = Raw(way, bytes, times);
      raw.insert(raw.end(), more.begin(), more.end());
    }
    const Times times{first, Median(ours), Median(calls), Median(raw)};
    Print(way, bytes, times, path);
    return times;
  }

  // The hand-over of a KV cache, beside one copy of as many bytes.
  void MeasureKvTo(int to, Goals& goals) {
    ::gpu_test::Wanted wanted;
    wanted.set_memory("library");
    wanted.set_bytes(kKvBytes);
    wanted.set_seed(3);
    auto given = stub_.Give(wanted, CallOptions().set_wait_for_ready(true)).Get();
    VERBENA_CHECK(given.ok(), given.status().ToString());
    const KvTimes kv = MeasureKv(stub_, to, wanted.seed());
    const double raw = Median(Raw({"a KV cache, contiguous", "library", 0, to}, kKvBytes, 10));
    char row[200];
    std::snprintf(
        row, sizeof row,
        "KV cache, 64 layers x 256 blocks of 64 KiB, to cuda:%d: %.0f us, %.0f GB/s; raw, "
        "contiguous: %.0f us; a fetch for each block: %.0f us",
        to, kv.together_us, static_cast<double>(kKvBytes) / kv.together_us / 1e3, raw,
        kv.one_by_one_us);
    std::printf("%s\n", row);
    std::fflush(stdout);
    rows_.push_back(row);
    const std::string name = absl::StrCat("KV hand-over to cuda:", to);
    // Within one GPU a layer takes less to copy than to ask for.
    if (to != 0) goals.AtLeast(name + ", of one contiguous copy", 0.7, raw / kv.together_us);
    goals.AtLeast(name + ", times a fetch for each block", 5, kv.one_by_one_us / kv.together_us);
  }

  static void Header() {
    std::printf("%-30s %8s %10s %10s %10s %10s %9s %6s  %s\n", "way", "size", "first us",
                "fetch us", "call us", "raw us", "GB/s", "of raw", "path");
  }
  void Finish() const {
    for (const std::string& row : rows_) std::printf("%s\n", row.c_str());
  }

 private:
  // The same copy by the driver alone, within this process: from another allocation of the GPU's.
  std::vector<double> Raw(const Way& way, size_t bytes, int times) {
    if (std::string(way.transport) == "tcp") return RawStreams(bytes, times);
    const auto memory = [&](int gpu) {
      return UserMemory::Make(gpu < 0 ? "host" : "library", std::max(gpu, 0), bytes);
    };
    if (raw_from_.bytes() != bytes || raw_way_ != way.name) {
      raw_from_ = memory(way.from);
      raw_to_ = memory(way.to);
      raw_way_ = way.name;
      if (way.from >= 0 && way.to >= 0 && way.from != way.to)
        raw_peer_ = Imported(raw_from_, way.to);
    }
    const std::byte* const from =
        way.from >= 0 && way.to >= 0 && way.from != way.to ? raw_peer_ : raw_from_.data();
    return RawCopies(way.to >= 0 ? way.to : way.from, raw_to_.mutable_data(), from, bytes, times);
  }

  const std::byte* Imported(const Buffer& buffer, int by) {
    memory::Device& owner = **memory::FindDevice(buffer.device());
    const auto extents = owner.Describe(buffer.data(), buffer.bytes());
    // Under a number of the device's own.
    auto exported = owner.ExportTo((*extents)[0], memory::ExportWay::kVmmDescriptor);
    VERBENA_CHECK(exported.ok(), exported.status().ToString());
    auto mapping = (**memory::FindDevice(Device::Cuda(by))).Import(*exported);
    VERBENA_CHECK(mapping.ok(), mapping.status().ToString());
    return mapping->base;
  }

  void Print(const Way& way, size_t bytes, const Times& times, Path path) {
    char row[200];
    std::snprintf(row, sizeof row, "%-30s %8s %10.1f %10.2f %10.2f %10.2f %9.1f %6.2f  %s",
                  way.name, Size(bytes).c_str(), times.first_us, times.fetch_us, times.call_us,
                  times.raw_us, static_cast<double>(bytes) / times.fetch_us / 1e3,
                  times.raw_us / times.fetch_us, std::string(PathName(path)).c_str());
    std::printf("%s\n", row);
    std::fflush(stdout);
    rows_.push_back(row);
  }

  Owner owner_;
  ::gpu_test::Owner::Stub stub_{owner_.channel()};
  Buffer raw_from_, raw_to_;
  const std::byte* raw_peer_ = nullptr;
  std::string raw_way_;
  std::vector<std::string> rows_;
};

}  // namespace

namespace {

constexpr size_t kMiB = 1 << 20, kGiB = 1 << 30;

// Of a raw copy; 0: nothing is asked for.
double GoalOf(const Way& way, size_t bytes) {
  if (way.from < 0 || std::string(way.memory) == "pool") return 0;  // what is staged has none
  if (std::string(way.transport) == "tcp") return way.to >= 0 && bytes == kGiB ? 0.90 : 0;
  if (way.to >= 0 && way.from != way.to) {
    return bytes == kGiB ? 0.97 : bytes == 16 * kMiB ? 0.90 : bytes == 2 * kMiB ? 0.75 : 0;
  }
  return bytes == (way.to >= 0 ? kGiB : 256 * kMiB) ? 0.95 : 0;
}

void MeasureAll(Table& table, const Way& way, absl::Span<const size_t> sizes, Goals& goals) {
  const bool tcp = std::string(way.transport) == "tcp";
  for (const size_t bytes : sizes) {
    const Table::Times times = table.Measure(way, bytes);
    const std::string what = absl::StrCat(way.name, ", ", Size(bytes));
    if (const double goal = GoalOf(way, bytes); goal != 0) {
      goals.AtLeast(what + (tcp ? ", of a socket alone" : ", of a raw copy"), goal,
                    times.raw_us / times.fetch_us);
    }
    if (bytes == 4096 && way.from >= 0 && way.to >= 0 && way.from != way.to) {
      goals.AtMost(what + ", call and fetch, us above a raw copy", 6, times.call_us - times.raw_us);
    }
  }
}

std::vector<std::pair<Way, std::vector<size_t>>> AllRows(int gpus) {
  const std::vector<size_t> all = {4096, 256 << 10, 2 * kMiB, 16 * kMiB, 128 * kMiB, kGiB};
  const std::vector<size_t> host = {4096, 2 * kMiB, 16 * kMiB, 256 * kMiB};
  const std::vector<size_t> stream = {256 << 10, 16 * kMiB, kGiB};
  std::vector<std::pair<Way, std::vector<size_t>>> rows;
  if (gpus > 1) {
    rows.push_back({{"other GPU, other process", "library", 0, 1}, all});
    rows.push_back({{"other GPU, cudaMalloc memory", "malloc", 0, 1}, all});
  }
  rows.push_back({{"same GPU, other process", "library", 0, 0}, all});
  rows.push_back({{"same GPU, cudaMalloc memory", "malloc", 0, 0}, all});
  rows.push_back({{"GPU to host", "library", 0, -1}, host});
  rows.push_back({{"host to GPU", "host", -1, 0}, host});
  rows.push_back({{"shm staging, GPU to GPU", "pool", 0, gpus - 1}, {256 << 10, 16 * kMiB, kGiB}});
  rows.push_back({{"shm staging, GPU to host", "pool", 0, -1}, {kGiB}});
  rows.push_back({{"tcp, host to host", "host", -1, -1, "tcp"}, stream});
  rows.push_back({{"tcp, GPU to GPU", "library", 0, gpus - 1, "tcp"}, stream});
  rows.push_back({{"tcp, GPU to host", "library", 0, -1, "tcp"}, {kGiB}});
  rows.push_back({{"tcp, host to GPU", "host", -1, 0, "tcp"}, {kGiB}});
  return rows;
}

}  // namespace

int TableMain(const std::string& part) {
  if (absl::Status s = UseGpus(); !s.ok()) {
    std::printf("no table: %s\n", s.ToString().c_str());
    return 77;
  }
  int gpus = 0;
  (*gpu::LoadDriver())->cuDeviceGetCount(&gpus);
  std::map<std::string, std::unique_ptr<Table>> tables;
  const auto table_of = [&](const char* transport) -> Table& {
    std::unique_ptr<Table>& table = tables[transport];
    if (table == nullptr) table = std::make_unique<Table>(transport);
    return *table;
  };
  Goals goals;
  Table::Header();
  for (const auto& [way, sizes] : AllRows(gpus)) {
    if (std::string(way.name).find(part) == std::string::npos) continue;
    MeasureAll(table_of(way.transport), way, sizes, goals);
  }
  if (std::string("KV cache").find(part) != std::string::npos) {
    table_of("shm").MeasureKvTo(gpus - 1, goals);
  }
  std::printf("\n");
  Table::Header();
  for (const auto& [transport, table] : tables) table->Finish();
  goals.Print();
  return 0;
}

}  // namespace verbena::gpu_test
