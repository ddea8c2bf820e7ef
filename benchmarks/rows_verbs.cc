// The rows over verbs. Their peers run on the same device: only ratios mean anything on an emulated
// one.
#include "absl/strings/str_cat.h"
#include "benchmarks/harness/row.h"

namespace verbena::benchmarks {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kBulkBytes = 64 * kMiB;
constexpr const char* kEchoBytes = "64";
// An emulated device takes a second for 64 MiB.
constexpr double kBulkSeconds = 2;

Side Ours(const std::string& workload) {
  Side side;
  side.program = "bench_verbena";
  side.params = {{"workload", workload}, {"echo_bytes", kEchoBytes}};
  return side;
}

Side Self(const std::string& workload, const std::string& variant, double must) {
  Side side = Ours(workload);
  side.peer = "self";
  side.variant = variant;
  side.must = Must{must, must};
  return side;
}

Side Perftest(const std::string& test, std::optional<double> must = {}) {
  Side side;
  side.peer = "perftest";
  side.program = "bench_perftest";
  side.params = {{"workload", test}};
  side.variant = test;
  if (must) side.must = Must{*must, *must};
  return side;
}

// ib_read_bw of memory that no cache holds, like ours (soft-RoCE does not finish one message of
// 64 MiB), and of the same few pages again and again; the better one counts.
void AddReads(Row& row, double must) {
  for (const uint64_t mib : {16, 1}) {
    Side side = Perftest("ib_read_bw", must);
    side.params["message_bytes"] = absl::StrCat(mib * kMiB);
    absl::StrAppend(&side.variant, " ", mib, " MiB");
    row.peers.push_back(side);
  }
}

Row MakeRow(const std::string& name, uint64_t payload_bytes, uint64_t outstanding, Metric metric,
            Side ours) {
  Row row;
  row.name = name;
  row.transport = "verbs";
  row.payload_bytes = payload_bytes;
  row.outstanding = outstanding;
  row.metric = metric;
  row.ours = std::move(ours);
  row.device = true;
  return row;
}

void AddBulk(std::vector<Row>& rows) {
  Row row = MakeRow("tensor_64MiB", kBulkBytes, 1, Metric::kThroughput, Ours("tensor"));
  row.window_seconds = kBulkSeconds;
  AddReads(row, 0.9);
  rows.push_back(row);

  row =
      MakeRow("bulk_beside_echo_64B", kBulkBytes, 1, Metric::kThroughput, Ours("echo_beside_bulk"));
  row.window_seconds = kBulkSeconds;
  AddReads(row, 0.8);
  rows.push_back(row);

  row = MakeRow("echo_64B_beside_bulk_p99", kBulkBytes, 1, Metric::kP99, Ours("echo_beside_bulk"));
  row.window_seconds = kBulkSeconds;
  row.peers = {Self("echo_coroutine", "idle", 5)};
  rows.push_back(row);
}

void AddMany(std::vector<Row>& rows) {
  Row row = MakeRow("echo_32B_64_outstanding", 32, 64, Metric::kRate, Ours("echo_many"));
  row.peers = {Self("echo_many", "one SEND per message", 3)};
  row.peers[0].environment = {"VERBENA_VERBS_BATCH=0"};
  row.peers.push_back(Perftest("ib_send_bw"));
  row.peers[1].params["message_bytes"] = kEchoBytes;
  rows.push_back(row);

  row = MakeRow("messages_per_send", 32, 64, Metric::kGain, Ours("echo_many"));
  row.must_alone = Must{4, 4};
  rows.push_back(row);

  row = MakeRow("doorbells_per_tick", 32, 64, Metric::kValue, Ours("echo_many"));
  row.ours.params["value"] = "doorbells_per_tick";
  row.must_alone = Must{1, 1};
  rows.push_back(row);
}

}  // namespace

std::vector<Row> VerbsRows() {
  std::vector<Row> rows;
  Row row = MakeRow("unary_64B", 64, 1, Metric::kLatency, Ours("echo"));
  row.peers = {Perftest("ib_send_lat", 2)};
  rows.push_back(row);
  AddBulk(rows);
  AddMany(rows);
  return rows;
}

}  // namespace verbena::benchmarks
