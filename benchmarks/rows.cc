// The rows: every line of what Verbena must reach, with the peers that do the same work.
#include "absl/strings/str_cat.h"
#include "benchmarks/harness/row.h"

namespace verbena::benchmarks {
namespace {

constexpr uint64_t kKiB = 1 << 10;
constexpr uint64_t kMiB = 1 << 20;

Side Ours(const std::string& workload) {
  Side side;
  side.program = "bench_verbena";
  side.params = {{"workload", workload}};
  return side;
}

// Ourselves at other work, as what a row is compared with.
Side Self(const std::string& workload, std::optional<Must> must = {}) {
  Side side = Ours(workload);
  side.peer = "self";
  side.variant = workload;
  side.must = must;
  return side;
}

Side Peer(const std::string& peer, const std::string& program, const std::string& workload,
          std::optional<Must> must = {}) {
  Side side;
  side.peer = peer;
  side.program = program;
  side.params = {{"workload", workload}};
  side.must = must;
  return side;
}

// UCX itself has no notion of a reply: its latency test is a ping-pong of one-way messages, its
// rate one way.
Side Ucx(const std::string& test, std::optional<Must> must = {}) {
  Side side = Peer("ucx", "bench_ucx", test, must);
  side.variant = test;
  return side;
}

// gRPC at its best: every API, with glibc's malloc and with tcmalloc; the best one counts.
void AddGrpc(Row& row, const std::string& workload, std::optional<Must> must = {}) {
  for (const char* api : {"sync", "callback", "cq"}) {
    for (const bool tcmalloc : {false, true}) {
      Side side = Peer("grpc", "bench_grpc", workload, must);
      side.params["api"] = api;
      side.variant = absl::StrCat(api, tcmalloc ? " tcmalloc" : "");
      if (tcmalloc) side.preload = "libtcmalloc_minimal.so.4";
      row.peers.push_back(side);
    }
  }
}

Row MakeRow(const std::string& name, const std::string& transport, uint64_t payload_bytes,
            uint64_t outstanding, Metric metric, Side ours) {
  Row row;
  row.name = name;
  row.transport = transport;
  row.payload_bytes = payload_bytes;
  row.outstanding = outstanding;
  row.metric = metric;
  row.ours = std::move(ours);
  return row;
}

void AddSmallCalls(std::vector<Row>& rows) {
  Row row = MakeRow("echo_32B", "shm", 32, 1, Metric::kLatency, Ours("echo"));
  row.peers = {Ucx("ucp_am_lat", Must{1.5, 1.0}), Peer("raw", "bench_raw", "ping_pong")};
  AddGrpc(row, "echo", Must{1.0 / 120, 1.0 / 120});
  row.must_p99_near = 1000;
  rows.push_back(row);

  row = MakeRow("echo_32B_same_core", "shm", 32, 1, Metric::kLatency, Ours("echo"));
  row.same_core = true;
  AddGrpc(row, "echo", Must{0.1, 0.1});
  rows.push_back(row);

  row = MakeRow("echo_32B_64_outstanding", "shm", 32, 64, Metric::kRate, Ours("echo_many"));
  row.peers = {Ucx("ucp_am_bw", Must{0.55, 1.1})};
  AddGrpc(row, "echo", Must{60, 60});
  rows.push_back(row);

  row = MakeRow("echo_32B", "tcp", 32, 1, Metric::kLatency, Ours("echo"));
  row.peers = {Peer("raw", "bench_raw", "ping_pong", Must{1.12, 1.12}), Ucx("ucp_am_lat")};
  AddGrpc(row, "echo");
  rows.push_back(row);

  row = MakeRow("echo_32B_64_outstanding", "tcp", 32, 64, Metric::kRate, Ours("echo_many"));
  row.peers = {Ucx("ucp_am_bw")};
  AddGrpc(row, "echo");
  rows.push_back(row);
}

void AddLargePayloads(std::vector<Row>& rows) {
  struct Size {
    const char* name;
    uint64_t bytes;
    std::optional<Must> pool;
    std::optional<Must> user;
  };
  const Size sizes[] = {{"64KiB", 64 * kKiB, {}, {}},
                        {"1MiB", kMiB, Must{0.93, 0.93}, Must{0.35, 0.35}},
                        {"16MiB", 16 * kMiB, Must{1.05, 1.05}, {}},
                        {"64MiB", 64 * kMiB, Must{1.25, 1.25}, Must{0.55, 0.55}}};
  for (const Size& size : sizes) {
    Row row = MakeRow(absl::StrCat("tensor_", size.name), "shm", size.bytes, 1, Metric::kThroughput,
                      Ours("tensor"));
    row.peers = {Peer("memcpy", "bench_memcpy", "copy", size.pool), Ucx("ucp_get"),
                 Peer("process_vm_readv", "bench_raw", "vm_readv")};
    rows.push_back(row);
    if (!size.user) continue;
    row.name = absl::StrCat("tensor_user_", size.name);
    row.ours = Ours("tensor_user");
    row.peers = {Peer("memcpy", "bench_memcpy", "copy", size.user),
                 Peer("process_vm_readv", "bench_raw", "vm_readv")};
    rows.push_back(row);
  }
  Row row = MakeRow("bytes_1MiB", "shm", kMiB, 1, Metric::kThroughput, Ours("put"));
  AddGrpc(row, "put", Must{3, 3});
  rows.push_back(row);
  for (const uint64_t mib : {1, 64}) {
    row = MakeRow(absl::StrCat("tensor_", mib, "MiB"), "tcp", mib * kMiB, 1, Metric::kThroughput,
                  Ours("tensor"));
    std::optional<Must> must;
    if (mib == 64) must = Must{0.9, 0.9};
    row.peers = {Peer("raw", "bench_raw", "stream", must),
                 Peer("raw, as much memory", "bench_raw", "stream_all")};
    rows.push_back(row);
  }
}

// Small calls beside bulk on one channel: their p99 against idle, and what is left of the bulk
// rate.
void AddMixed(std::vector<Row>& rows) {
  constexpr uint64_t kBulkBytes = 1024 * kMiB;
  for (const char* transport : {"shm", "tcp"}) {
    const bool shm = std::string(transport) == "shm";
    const double p99 = shm ? 3 : 4;
    Row row = MakeRow("echo_32B_beside_bulk_p99", transport, kBulkBytes, 1, Metric::kP99,
                      Ours("echo_beside_bulk"));
    row.peers = {Self("echo_coroutine", Must{p99, p99})};
    rows.push_back(row);
    row = MakeRow("bulk_beside_echo_32B", transport, kBulkBytes, 1, Metric::kThroughput,
                  Ours("echo_beside_bulk"));
    if (shm) {
      row.must_alone = Must{12e9, 12e9};
    } else {
      row.peers = {Self("tensor", Must{0.3, 0.3})};
    }
    rows.push_back(row);
  }
}

void AddResources(std::vector<Row>& rows) {
  Row row = MakeRow("allocations_per_call", "shm", 32, 1, Metric::kCounter, Ours("echo"));
  row.ours.program = "bench_verbena_allocations";
  row.counter = "allocations";
  row.must_alone = Must{0, 0};
  rows.push_back(row);

  row = MakeRow("memory_per_idle_connection", "shm", 0, 1000, Metric::kCounter,
                Ours("idle_connections"));
  row.counter = "memory_bytes";
  row.windows = 1;  // each opens that many more connections
  row.must_alone = Must{64.0 * kKiB, 64.0 * kKiB};
  rows.push_back(row);

  row = MakeRow("fairness_8_clients", "shm", 32, 8, Metric::kValue, Ours("fairness"));
  row.must_alone = Must{2, 2};
  rows.push_back(row);
}

}  // namespace

std::vector<Row> AllRows() {
  std::vector<Row> rows;
  AddSmallCalls(rows);
  AddLargePayloads(rows);
  AddMixed(rows);
  AddResources(rows);
  return rows;
}

}  // namespace verbena::benchmarks
