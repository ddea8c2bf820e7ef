#include "examples/03_inference/classification.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "examples/03_inference/network.h"

namespace verbena::examples {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(5);
constexpr size_t kImageWidth = 8;

absl::StatusOr<int> AnswerOf(const inference::ClassifyReply& reply) {
  if (reply.classes() != kDigitCount || reply.scores_size() != static_cast<int>(kDigitCount)) {
    return absl::InvalidArgumentError(absl::StrCat("the server gave ", reply.scores_size(),
                                                   " scores for an image, expected ", kDigitCount));
  }
  return static_cast<int>(BestOf(absl::MakeConstSpan(reply.scores().data(), kDigitCount)));
}

}  // namespace

absl::StatusOr<Classification> Classify(const inference::Classifier::Stub& stub,
                                        const Digits& digits, size_t begin) {
  Classification result;
  for (size_t i = begin; i < digits.count(); ++i) {
    const absl::Time start = absl::Now();
    Parcel<inference::ClassifyRequest> request;
    VERBENA_ASSIGN_OR_RETURN(Tensor image,
                             Tensor::Copy<float>(digits.image(i), Shape(1, kPixelCount)));
    request.Attach(*request->mutable_images(), std::move(image));
    auto call = stub.Classify(request, CallOptions().set_timeout(kCallTimeout));
    VERBENA_ASSIGN_OR_RETURN(inference::ClassifyReply reply, call.Get());
    result.latencies.push_back(absl::Now() - start);
    VERBENA_ASSIGN_OR_RETURN(int answer, AnswerOf(reply));
    result.answers.push_back(answer);
    result.right += answer == digits.labels[i];
    result.transport = std::string(call.report().transport);
  }
  std::sort(result.latencies.begin(), result.latencies.end());
  return result;
}

std::string Drawing(absl::Span<const float> image) {
  constexpr absl::string_view shades = " .:-=+*#%@";
  std::string drawing;
  for (size_t i = 0; i < image.size(); ++i) {
    const float shade = std::clamp(image[i], 0.0f, 1.0f) * static_cast<float>(shades.size() - 1);
    drawing.append(2, shades[static_cast<size_t>(shade)]);  // Twice: characters are tall.
    if (i % kImageWidth == kImageWidth - 1) drawing.push_back('\n');
  }
  return drawing;
}

}  // namespace verbena::examples
