// A tensor whose rows are fetched into rows of another: Placement::IntoRows.
#include <cstring>

#include "rpc/base/limits.h"
#include "rpc/memory/fake_device.h"
#include "tests/client/fixture.h"
#include "tests/transports.h"

namespace verbena {
namespace {

using memory::FakeDevice;

constexpr int64_t kWidth = 96;

Tensor Numbered(int64_t rows, float first) {
  std::vector<float> values(static_cast<size_t>(rows * kWidth));
  for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i);
  return *Tensor::Copy<float>(values, Shape(rows, kWidth));
}

// Replies with a tensor of the server's.
struct Giver {
  explicit Giver(Tensor given, const std::string& transport)
      : tensor(std::move(given)),
        loop((
                 mock.on_Infer = [this](ServerContext&, const Parcel<test::InferRequest>&,
                                        Parcel<test::InferReply>& reply) -> Task<absl::Status> {
                   reply.Attach(*reply->mutable_output(), tensor);
                   co_return absl::OkStatus();
                 },
                 mock),
             ChannelOptions().set_require_transport(transport)) {}
  Parcel<test::InferReply> Get() {
    auto reply = stub.Infer(InferParcel()).Get();
    REQUIRE_CODE(reply.status(), kOk);
    return *std::move(reply);
  }
  Tensor tensor;
  test::Inference::Mock mock;
  testing::Loopback loop;
  test::Inference::Stub stub{loop.channel()};
};

// Every row of `table`: what was fetched into it, or zeros.
void CheckRows(const std::vector<float>& table, const std::vector<int64_t>& rows, float first) {
  std::vector<float> right(table.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    for (int64_t c = 0; c < kWidth; ++c) {
      right[static_cast<size_t>(rows[i] * kWidth + c)] =
          first + static_cast<float>(static_cast<int64_t>(i) * kWidth + c);
    }
  }
  CHECK(table == right);
}

// Every other row backwards, then two that lie side by side.
std::vector<int64_t> Scattered(int64_t count) {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < count - 2; ++i) rows.push_back(2 * (count - i));
  rows.push_back(1);
  rows.push_back(2);
  return rows;
}

TEST_CASE("rows are fetched into the rows that a table names, and nothing else is touched",
          "[client][rows]") {
  for (const std::string& transport : TestTransports()) {
    for (const int64_t count : {int64_t{3}, int64_t{100}, int64_t{2000}}) {
      INFO(transport << ", " << count << " rows");
      Giver giver(Numbered(count, 1), transport);
      const std::vector<int64_t> rows = Scattered(count);
      Tensor table = *Tensor::Empty(kFloat32, Shape(2 * count + 1, kWidth));
      std::memset(table.mutable_data(), 0, table.bytes());
      auto reply = giver.Get();
      auto fetched = reply.Fetch(reply->output(), Placement::IntoRows(table, rows)).Get();
      REQUIRE_CODE(fetched.status(), kOk);
      CHECK(fetched->data() == table.data());
      const auto values = *table.Values<float>();
      CheckRows({values.begin(), values.end()}, rows, 1);
    }
  }
}

TEST_CASE("rows of a slice go where a table says, on a device too", "[client][rows][device]") {
  FakeDevice& fake = FakeDevice::Install(1);
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    Giver giver(Numbered(8, 1), transport);
    Tensor table = *Tensor::Empty(kFloat32, Shape(6, kWidth), Device::Fake(1));
    std::vector<float> values(static_cast<size_t>(6 * kWidth));
    fake.Write(table.mutable_data(), values.data(), table.bytes());
    auto reply = giver.Get();
    const Placement into = Placement::IntoRows(table, {5, 0, 3});
    REQUIRE_CODE(reply.Fetch(reply->output(), TensorSlice(2, 5), into).Get().status(), kOk);
    fake.Read(values.data(), table.data(), table.bytes());
    CheckRows(values, {5, 0, 3}, 1 + 2 * kWidth);
  }
}

TEST_CASE("rows of what is here already are copied", "[client][rows]") {
  Giver giver(Numbered(3, 7), "shm");
  auto reply = giver.Get();
  REQUIRE_CODE(reply.FetchAll().Get(), kOk);
  Tensor table = *Tensor::Empty(kFloat32, Shape(4, kWidth));
  std::memset(table.mutable_data(), 0, table.bytes());
  auto call = reply.Fetch(reply->output(), Placement::IntoRows(table, {3, 0, 2}));
  REQUIRE_CODE(call.Get().status(), kOk);
  CHECK(call.report().path == Path::kLocal);
  const auto values = *table.Values<float>();
  CheckRows({values.begin(), values.end()}, {3, 0, 2}, 7);
}

TEST_CASE("rows that do not fit are refused before a byte moves", "[client][rows]") {
  Giver giver(Numbered(3, 1), "shm");
  auto reply = giver.Get();
  const auto code = [&](Tensor table, std::vector<int64_t> rows) {
    const Placement into = Placement::IntoRows(std::move(table), std::move(rows));
    return reply.Fetch(reply->output(), into).Get().status();
  };
  const auto table = [](int64_t width) { return *Tensor::Empty(kFloat32, Shape(4, width)); };
  REQUIRE_CODE(code(table(kWidth), {0, 1, 4}), kOutOfRange);
  REQUIRE_CODE(code(table(kWidth), {0, -1, 2}), kOutOfRange);
  REQUIRE_CODE(code(table(kWidth), {0, 1}), kInvalidArgument);
  REQUIRE_CODE(code(table(kWidth), {0, 1, 2, 3}), kInvalidArgument);
  REQUIRE_CODE(code(table(kWidth + 1), {0, 1, 2}), kInvalidArgument);
  REQUIRE_CODE(code(*Tensor::Empty(kInt32, Shape(4, kWidth)), {0, 1, 2}), kInvalidArgument);
  static const float constant[4 * kWidth] = {};
  REQUIRE_CODE(code(*Tensor::Wrap(Buffer::WrapReadOnly(constant, sizeof constant, [] {}), kFloat32,
                                  Shape(4, kWidth)),
                    {0, 1, 2}),
               kInvalidArgument);
  // Only one tensor has rows.
  const Placement into = Placement::IntoRows(table(kWidth), {0, 1, 2});
  REQUIRE_CODE(reply.FetchAll(into).Get(), kInvalidArgument);
  REQUIRE_CODE(
      giver.stub.Infer(InferParcel(), CallOptions().set_reply_placement(into)).Get().status(),
      kInvalidArgument);
  // A fetch that is refused takes nothing from the parcel.
  REQUIRE_CODE(reply.Fetch(reply->output()).Get().status(), kOk);
}

TEST_CASE("more runs of rows than a fetch may have are refused", "[client][rows]") {
  const auto count = static_cast<int64_t>(limits::kFetchPiecesMax) + 1;
  Giver giver(Numbered(count, 1), "shm");
  auto reply = giver.Get();
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < count; ++i) rows.push_back(2 * i);
  const Tensor table = *Tensor::Empty(kFloat32, Shape(2 * count, kWidth));
  REQUIRE_CODE(reply.Fetch(reply->output(), Placement::IntoRows(table, rows)).Get().status(),
               kResourceExhausted);
  // Side by side they are one.
  for (int64_t i = 0; i < count; ++i) rows[static_cast<size_t>(i)] = i;
  REQUIRE_CODE(reply.Fetch(reply->output(), Placement::IntoRows(table, rows)).Get().status(), kOk);
}

}  // namespace
}  // namespace verbena
