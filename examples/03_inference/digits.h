#pragma once
// The handwritten digits of digits.csv, as the network wants them.
#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace verbena::examples {

inline constexpr size_t kPixelCount = 64;
inline constexpr size_t kDigitCount = 10;
inline constexpr int kPixelMax = 16;
// train.py trains on the images before these last ones.
inline constexpr size_t kTestImageCount = 450;
// The whole UCI set (both parts) has 5,620.
inline constexpr size_t kImageCountMax = 10'000;

struct Digits {
  // kPixelCount numbers of 0 to 1 per image.
  std::vector<float> pixels;
  std::vector<int> labels;

  size_t count() const { return labels.size(); }
  absl::Span<const float> image(size_t index) const {
    return absl::MakeConstSpan(pixels).subspan(index * kPixelCount, kPixelCount);
  }
};

// Reads lines of 64 pixels of 0 to 16 and a label of 0 to 9, separated by commas.
// Errors: NOT_FOUND; INVALID_ARGUMENT naming the file, the line and the value.
absl::StatusOr<Digits> LoadDigits(const std::string& path);

}  // namespace verbena::examples
