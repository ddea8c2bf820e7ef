// The example's services and clients together, over a loopback: no process, no socket.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "examples/03_inference/classification.h"
#include "examples/03_inference/classifier_service.h"
#include "examples/03_inference/pull.h"
#include "examples/03_inference/weights_service.h"
#include "tests/catch.h"
#include "tests/examples/temporary_file.h"
#include "tests/transports.h"
#include "verbena/testing.h"

namespace verbena::examples {
namespace {

using Catch::ContainsSubstring;

safetensors::File OpenOrFail(const std::string& path) {
  absl::StatusOr<safetensors::File> file = safetensors::File::Open(path);
  INFO(file.status().ToString());
  REQUIRE(file.ok());
  return *std::move(file);
}

std::string Text(const absl::Status& status) { return std::string(status.message()); }

// A weights server that says one thing and serves another.
class Liar final : public inference::Weights::Service {
 public:
  Liar(inference::TensorEntry entry, Tensor tensor)
      : entry_(std::move(entry)), tensor_(std::move(tensor)) {}
  Task<absl::Status> List(ServerContext&, const inference::ListRequest&,
                          inference::ListReply& reply) override {
    *reply.add_tensors() = entry_;
    return absl::OkStatus();
  }
  Task<absl::Status> Pull(ServerContext&, const inference::PullRequest&,
                          Parcel<inference::PullReply>& reply) override {
    reply.Attach(*reply->mutable_tensor(), tensor_);
    return absl::OkStatus();
  }

 private:
  const inference::TensorEntry entry_;
  const Tensor tensor_;
};

absl::Status PullFromLiar(const std::vector<int64_t>& shape, uint64_t bytes) {
  inference::TensorEntry entry;
  entry.set_name("t");
  entry.set_bytes(bytes);
  entry.set_sha256("00");
  entry.mutable_spec()->set_dtype(kFloat32.word());
  for (int64_t dimension : shape) entry.mutable_spec()->add_shape(dimension);
  const std::vector<float> values = {1, 2};
  Liar liar(entry, *Tensor::Copy<float>(values, Shape(2)));
  testing::Loopback loopback(liar);
  return PullAll(inference::Weights::Stub(loopback.channel())).status();
}

}  // namespace

TEST_CASE("the digits are classified by a network that was pulled", "[example]") {
  WeightsService weights(OpenOrFail(EXAMPLE_DATA "digits.safetensors"));
  testing::Loopback weights_loopback(weights);
  absl::StatusOr<Pulled> pulled = PullAll(inference::Weights::Stub(weights_loopback.channel()));
  INFO(pulled.status().ToString());
  REQUIRE(pulled.ok());
  CHECK(pulled->tensors.size() == 6);
  CHECK(pulled->bytes == 68904);

  auto classifier = ClassifierService::Create(std::move(pulled->tensors));
  REQUIRE(classifier.ok());
  testing::Loopback loopback(**classifier);
  absl::StatusOr<Digits> digits = LoadDigits(EXAMPLE_DATA "digits.csv");
  REQUIRE(digits.ok());
  auto result = Classify(inference::Classifier::Stub(loopback.channel()), *digits,
                         digits->count() - kTestImageCount);
  INFO(result.status().ToString());
  REQUIRE(result.ok());
  // Expect: as many right as without any RPC.
  safetensors::File file = OpenOrFail(EXAMPLE_DATA "digits.safetensors");
  CHECK(absl::StrCat(result->right) == file.metadata().at("test_right"));
  CHECK(result->latencies.size() == kTestImageCount);
}

TEST_CASE("two servers that share the layers answer as one does", "[example]") {
  WeightsService weights(OpenOrFail(EXAMPLE_DATA "digits.safetensors"));
  testing::Loopback weights_loopback(weights);
  const inference::Weights::Stub stub(weights_loopback.channel());
  auto last = *ClassifierService::Create(PullAll(stub)->tensors);
  testing::Loopback last_loopback(*last);
  auto first = *ClassifierService::Create(PullAll(stub)->tensors, nullptr, last_loopback.channel());
  testing::Loopback first_loopback(*first);
  absl::StatusOr<Digits> digits = LoadDigits(EXAMPLE_DATA "digits.csv");
  REQUIRE(digits.ok());
  const size_t begin = digits->count() - kTestImageCount;
  const inference::Classifier::Stub alone(last_loopback.channel()), both(first_loopback.channel());
  CHECK(Classify(both, *digits, begin)->answers == Classify(alone, *digits, begin)->answers);
  // What is passed on is checked like what comes from a client.
  Parcel<inference::ContinueRequest> request;
  request->set_layer(1);
  request.Attach(*request->mutable_activations(), *Tensor::Empty(kFloat32, Shape(1, 127)));
  CHECK_THAT(Text(alone.Continue(request).Get().status()),
             ContainsSubstring("127 activations, the network takes 128"));
  request->set_layer(3);
  CHECK_THAT(Text(alone.Continue(request).Get().status()), ContainsSubstring("layer 3 of 3"));
}

TEST_CASE("images that do not fit the network are refused", "[example]") {
  WeightsService weights(OpenOrFail(EXAMPLE_DATA "digits.safetensors"));
  testing::Loopback weights_loopback(weights);
  absl::StatusOr<Pulled> pulled = PullAll(inference::Weights::Stub(weights_loopback.channel()));
  REQUIRE(pulled.ok());
  auto classifier = ClassifierService::Create(std::move(pulled->tensors));
  REQUIRE(classifier.ok());
  testing::Loopback loopback(**classifier);
  inference::Classifier::Stub stub(loopback.channel());
  const auto error = [&stub](DType dtype, const Shape& shape) {
    Parcel<inference::ClassifyRequest> request;
    request.Attach(*request->mutable_images(), *Tensor::Empty(dtype, shape));
    return Text(stub.Classify(request).Get().status());
  };
  CHECK_THAT(error(kInt32, Shape(1, 64)), ContainsSubstring("expected float32 and 2"));
  CHECK_THAT(error(kFloat32, Shape(64)), ContainsSubstring("1 dimensions"));
  CHECK_THAT(error(kFloat32, Shape(0, 64)), ContainsSubstring("0 images, allowed are 1 to 1024"));
  CHECK_THAT(error(kFloat32, Shape(1025, 64)), ContainsSubstring("1025 images"));
  CHECK_THAT(error(kFloat32, Shape(1, 63)),
             ContainsSubstring("63 pixels per image, the network takes 64"));
}

TEST_CASE("a tensor that the file does not have is not found", "[example]") {
  WeightsService weights(OpenOrFail(EXAMPLE_DATA "digits.safetensors"));
  testing::Loopback loopback(weights);
  inference::PullRequest request;
  request.set_name("layers.9.weight");
  CHECK(inference::Weights::Stub(loopback.channel()).Pull(request).Get().status().code() ==
        absl::StatusCode::kNotFound);
}

TEST_CASE("a file that changes while it is served is not pulled", "[example]") {
  const std::string header = R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
  TemporaryFile temporary(LittleEndian(header.size()) + header + "xy");
  WeightsService weights(OpenOrFail(temporary.path()));
  testing::Loopback loopback(weights);
  inference::Weights::Stub stub(loopback.channel());
  REQUIRE(PullAll(stub).ok());
  temporary.Truncate(8);
  absl::Status status = PullAll(stub).status();
  CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(Text(status), ContainsSubstring("has 8 now"));
}

TEST_CASE("a file that is truncated while it is pulled fails that pull and nothing else",
          "[example][hostile]") {
  constexpr uint64_t bytes = uint64_t{4} << 20;
  const std::string header = absl::StrCat(R"({"t":{"dtype":"U8","shape":[)", bytes,
                                          R"(],"data_offsets":[0,)", bytes, "]}}");
  for (const std::string& transport : TestTransports()) {
    TemporaryFile temporary(LittleEndian(header.size()) + header);
    temporary.Truncate(8 + header.size() + bytes);
    WeightsService weights(OpenOrFail(temporary.path()));
    testing::Loopback loopback(weights, ChannelOptions().set_require_transport(transport));
    inference::Weights::Stub stub(loopback.channel());
    inference::PullRequest request;
    request.set_name("t");
    auto reply = stub.Pull(request).Get();
    INFO(transport << ": " << reply.status().ToString());
    REQUIRE(reply.ok());
    // The memory behind the lease goes. Expect: a typed error, and a server that goes on.
    temporary.Truncate(8192);
    Parcel<inference::PullReply> parcel = *std::move(reply);
    const absl::Status status = parcel.Fetch(parcel->tensor()).Get().status();
    INFO(status.ToString());
    // Over verbs the bytes were pinned or copied when the reply left.
    const bool held = transport == "verbs";
    CHECK(status.code() == (held ? absl::StatusCode::kOk : absl::StatusCode::kDataLoss));
    CHECK(stub.List(inference::ListRequest()).Get().ok());
  }
}

TEST_CASE("a tensor larger than a piece arrives whole", "[example]") {
  // 3 rows of 48 MiB: pieces of one row, zeros but for marks at both ends of each.
  constexpr uint64_t row_bytes = uint64_t{48} << 20;
  const std::string header = absl::StrCat(R"({"t":{"dtype":"U8","shape":[3,)", row_bytes,
                                          R"(],"data_offsets":[0,)", 3 * row_bytes, "]}}");
  TemporaryFile temporary(LittleEndian(header.size()) + header);
  const uint64_t data = 8 + header.size();
  temporary.Truncate(data + 3 * row_bytes);
  for (uint64_t row = 0; row < 3; ++row) {
    temporary.Write(data + row * row_bytes, std::string(1, static_cast<char>('a' + row)));
    temporary.Write(data + (row + 1) * row_bytes - 1, std::string(1, static_cast<char>('A' + row)));
  }
  WeightsService weights(OpenOrFail(temporary.path()));
  testing::Loopback loopback(weights);
  absl::StatusOr<Pulled> pulled = PullAll(inference::Weights::Stub(loopback.channel()));
  INFO(pulled.status().ToString());
  REQUIRE(pulled.ok());
  const std::byte* bytes = pulled->tensors[0].tensor.data();
  for (uint64_t row = 0; row < 3; ++row) {
    CHECK(bytes[row * row_bytes] == static_cast<std::byte>('a' + row));
    CHECK(bytes[(row + 1) * row_bytes - 1] == static_cast<std::byte>('A' + row));
  }
}

TEST_CASE("a server whose list disagrees with its tensors is found out", "[example]") {
  CHECK_THAT(Text(PullFromLiar({2}, 8)), ContainsSubstring("arrived with SHA-256"));
  CHECK(PullFromLiar({2}, 8).code() == absl::StatusCode::kDataLoss);
  CHECK_THAT(Text(PullFromLiar({2}, 9)), ContainsSubstring("9 bytes, its dtype and shape need 8"));
  CHECK_THAT(Text(PullFromLiar({1}, 4)),
             ContainsSubstring("not of the dtype and shape that were listed"));
  CHECK_THAT(Text(PullFromLiar({-1}, 4)), ContainsSubstring("dimension -1 is negative"));
  CHECK_THAT(Text(PullFromLiar({int64_t{1} << 62, 4}, 0)), ContainsSubstring("too large"));
  CHECK(PullFromLiar({int64_t{1} << 40}, uint64_t{1} << 42).code() ==
        absl::StatusCode::kResourceExhausted);
}

}  // namespace verbena::examples
