#pragma once
// What a verbs RemoteKey says: where the lease lies in its owner, how long it is, the key that lets
// a queue pair READ it, and the generation of the lane that the key belongs to. A key that was
// damaged, or is of another lane, is found out at the reader's end and not by the device, whose
// answer would cost the lane; nothing here protects the owner, which its device does.
#include <cstdint>
#include <optional>

#include "rpc/fabric/fabric.h"

namespace verbena::fabric::verbs {

struct KeyFields {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t rkey = 0;
  uint32_t lane_generation = 0;
};

namespace internal {
constexpr uint64_t Mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15;
  return hash ^ hash >> 32;
}
constexpr uint64_t CheckOf(const RemoteKey& key) {
  return Mix(Mix(Mix(0x766572626e61, key.words[0]), key.words[1]), key.words[2]);
}
}  // namespace internal

constexpr RemoteKey MakeKey(const KeyFields& fields) {
  RemoteKey key;
  key.words[0] = fields.address;
  key.words[1] = fields.bytes;
  key.words[2] = uint64_t{fields.lane_generation} << 32 | fields.rkey;
  key.words[3] = internal::CheckOf(key);
  return key;
}

// Nothing: it is no key of this fabric's.
constexpr std::optional<KeyFields> ReadKey(const RemoteKey& key) {
  if (key.words[3] != internal::CheckOf(key)) return std::nullopt;
  return KeyFields{key.words[0], key.words[1], static_cast<uint32_t>(key.words[2]),
                   static_cast<uint32_t>(key.words[2] >> 32)};
}

}  // namespace verbena::fabric::verbs
