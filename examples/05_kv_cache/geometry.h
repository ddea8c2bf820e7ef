#pragma once
// What both servers have to agree on, from the command line: LAYERS, BLOCK_KIB, PAGES.
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"

namespace verbena::examples {

struct Geometry {
  uint32_t layers = 0;
  uint32_t block_bytes = 0;
  uint32_t pages = 0;
};

// Empty unless all are positive numbers, and a layer of pages below 4 GiB.
inline std::optional<Geometry> ReadGeometry(const std::string& layers, const std::string& block_kib,
                                            const std::string& pages) {
  Geometry geometry;
  uint32_t kib = 0;
  if (!absl::SimpleAtoi(layers, &geometry.layers) || !absl::SimpleAtoi(block_kib, &kib) ||
      !absl::SimpleAtoi(pages, &geometry.pages) || geometry.layers == 0 || kib == 0 ||
      geometry.pages == 0 || (uint64_t{kib} << 10) * geometry.pages >= uint64_t{1} << 32) {
    return std::nullopt;
  }
  geometry.block_bytes = kib << 10;
  return geometry;
}

}  // namespace verbena::examples
