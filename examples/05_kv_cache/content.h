#pragma once
// What the keys and values of a prompt are: instead of a model, a formula of prompt, layer and
// place, so that whoever received them can tell every byte.
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace verbena::examples {

// The 32-bit word `index` of a layer, of all its blocks one after the other. kernels.cu has the
// same.
inline uint32_t KvWord(uint32_t seed, uint32_t layer, uint32_t index) {
  return (seed * 0x9E3779B1u ^ layer * 0x85EBCA77u) + index * 0xC2B2AE3Du;
}

// How many bytes of a block are not what they should be.
inline size_t WrongBytes(absl::Span<const uint32_t> block, uint32_t seed, uint32_t layer,
                         uint32_t first_index) {
  size_t wrong = 0;
  for (size_t i = 0; i < block.size(); ++i) {
    uint32_t differs = block[i] ^ KvWord(seed, layer, first_index + static_cast<uint32_t>(i));
    for (; differs != 0; differs >>= 8) wrong += (differs & 0xff) != 0;
  }
  return wrong;
}

}  // namespace verbena::examples
