#include "examples/03_inference/network.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "examples/03_inference/digits.h"
#include "examples/03_inference/safetensors.h"
#include "tests/catch.h"

namespace verbena::examples {
namespace {

using Catch::ContainsSubstring;

// Two inputs, two hidden, one output: y = relu(a) - relu(b) + 1.
const std::vector<float> kWeight0 = {1, 0, 0, 1}, kBias0 = {0, 0}, kWeight1 = {1, -1}, kBias1 = {1};

std::vector<NamedTensor> Small() {
  return {{"layers.0.weight", {2, 2}, kWeight0},
          {"layers.0.bias", {2}, kBias0},
          {"layers.1.weight", {1, 2}, kWeight1},
          {"layers.1.bias", {1}, kBias1}};
}
std::string ErrorOf(const std::vector<NamedTensor>& tensors) {
  absl::StatusOr<Network> network = Network::Create(tensors);
  return network.ok() ? "made" : std::string(network.status().message());
}

}  // namespace

TEST_CASE("the shipped network is as accurate as when it was trained", "[example]") {
  absl::StatusOr<safetensors::File> file =
      safetensors::File::Open(EXAMPLE_DATA "digits.safetensors");
  INFO(file.status().ToString());
  REQUIRE(file.ok());
  std::vector<std::vector<float>> owned;
  std::vector<NamedTensor> tensors;
  for (const safetensors::TensorInfo& info : file->tensors()) {
    REQUIRE(info.dtype == safetensors::DTypeOf("F32"));
    owned.emplace_back(info.bytes / sizeof(float));
    std::memcpy(owned.back().data(), file->data(info).data(), info.bytes);
    tensors.push_back({info.name, info.shape, owned.back()});
  }
  absl::StatusOr<Network> network = Network::Create(tensors);
  INFO(network.status().ToString());
  REQUIRE(network.ok());
  CHECK(network->layer_count() == 3);
  CHECK(network->inputs() == kPixelCount);
  CHECK(network->outputs() == kDigitCount);

  absl::StatusOr<Digits> digits = LoadDigits(EXAMPLE_DATA "digits.csv");
  INFO(digits.status().ToString());
  REQUIRE(digits.ok());
  REQUIRE(digits->count() == 1797);
  // All test images in one batch.
  const size_t first = digits->count() - kTestImageCount;
  std::vector<float> scores(kTestImageCount * kDigitCount);
  REQUIRE(network
              ->Forward(absl::MakeConstSpan(digits->pixels).subspan(first * kPixelCount),
                        absl::MakeSpan(scores))
              .ok());
  int right = 0;
  for (size_t i = 0; i < kTestImageCount; ++i) {
    const size_t best = BestOf(absl::MakeConstSpan(scores).subspan(i * kDigitCount, kDigitCount));
    right += static_cast<int>(best) == digits->labels[first + i];
  }
  // Expect: what train.py counted and wrote beside the weights.
  int trained_right = 0;
  REQUIRE(absl::SimpleAtoi(file->metadata().at("test_right"), &trained_right));
  CHECK(file->metadata().at("test_images") == absl::StrCat(kTestImageCount));
  CHECK(right == trained_right);
  CHECK(right > static_cast<int>(kTestImageCount) * 9 / 10);
}

TEST_CASE("a small network computes what is worked out by hand", "[example]") {
  absl::StatusOr<Network> network = Network::Create(Small());
  REQUIRE(network.ok());
  const std::vector<float> x = {3, 1, -2, 5, 4, -7};
  std::vector<float> y(3);
  REQUIRE(network->Forward(x, absl::MakeSpan(y)).ok());
  CHECK(y == std::vector<float>{3, -4, 5});
  // Sizes that are no whole rows.
  CHECK_FALSE(network->Forward(absl::MakeConstSpan(x).subspan(1), absl::MakeSpan(y)).ok());
  CHECK_FALSE(network->Forward(x, absl::MakeSpan(y).subspan(1)).ok());
}

TEST_CASE("the best score is the first of the largest", "[example]") {
  CHECK(BestOf({1.0f, 3.0f, 3.0f, 2.0f}) == 1);
  CHECK(BestOf({-1.0f}) == 0);
}

TEST_CASE("tensors that make no network are refused", "[example]") {
  auto tensors = Small();
  CHECK_THAT(ErrorOf({}), ContainsSubstring("no tensor layers.0.weight"));
  tensors[1].name = "other";
  CHECK_THAT(ErrorOf(tensors), ContainsSubstring("no tensor layers.0.bias"));
  tensors = Small();
  tensors.push_back({"layers.3.bias", {1}, kBias1});
  CHECK_THAT(ErrorOf(tensors), ContainsSubstring("2 layers are 4 tensors, but there are 5"));
  tensors = Small();
  tensors[2].shape = {2, 1};
  CHECK_THAT(ErrorOf(tensors), ContainsSubstring("layers.1.bias has 1 entries"));
  tensors = Small();
  tensors[2] = {"layers.1.weight", {1, 1}, kBias1};
  CHECK_THAT(ErrorOf(tensors),
             ContainsSubstring("layer 1 takes 1 inputs, the layer before it gives 2"));
  tensors = Small();
  tensors[0].shape = {2, 3};
  CHECK_THAT(ErrorOf(tensors), ContainsSubstring("came with 4 values"));
  tensors[0].shape = {4};
  CHECK_THAT(ErrorOf(tensors), ContainsSubstring("expected rank 2"));
  tensors[0].shape = {0, 2};
  CHECK_THAT(ErrorOf(tensors), ContainsSubstring("allowed are 1 to 65536"));
  tensors[0].shape = {int64_t{1} << 32, int64_t{1} << 32};
  CHECK_THAT(ErrorOf(tensors), ContainsSubstring("allowed are 1 to 65536"));
}

}  // namespace verbena::examples
