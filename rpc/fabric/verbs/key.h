#pragma once
// What a verbs RemoteKey says: where the lease lies in its owner, how long it is and what memory
// that is, the key that lets a queue pair READ it, and the generation of the lane that the key
// belongs to. A key that was damaged, or is of another lane, is found out at the reader's end and
// not by the device, whose answer would cost the lane; nothing here protects the owner, which its
// device does.
#include <cstdint>
#include <optional>

#include "rpc/fabric/fabric.h"

namespace verbena::fabric::verbs {

// What the owner's NIC reads: it is part of the path that the reader tells.
enum class Source : uint8_t {
  kHost,    // host memory, where the payload lies
  kDevice,  // memory of a device, where the payload lies
  kCopy,    // host memory to which the payload was copied from a device
};

struct KeyFields {
  uint64_t address = 0;
  uint64_t bytes = 0;  // below 2^62
  Source source = Source::kHost;
  uint32_t rkey = 0;
  uint32_t lane_generation = 0;
};

namespace internal {
constexpr int kSourceShift = 62;
constexpr uint64_t kBytesMask = (uint64_t{1} << kSourceShift) - 1;
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
  key.words[1] = uint64_t{static_cast<uint8_t>(fields.source)} << internal::kSourceShift |
                 (fields.bytes & internal::kBytesMask);
  key.words[2] = uint64_t{fields.lane_generation} << 32 | fields.rkey;
  key.words[3] = internal::CheckOf(key);
  return key;
}

// Nothing: it is no key of this fabric's.
constexpr std::optional<KeyFields> ReadKey(const RemoteKey& key) {
  const uint64_t source = key.words[1] >> internal::kSourceShift;
  if (key.words[3] != internal::CheckOf(key)) return std::nullopt;
  if (source > static_cast<uint8_t>(Source::kCopy)) return std::nullopt;
  return KeyFields{key.words[0], key.words[1] & internal::kBytesMask, static_cast<Source>(source),
                   static_cast<uint32_t>(key.words[2]), static_cast<uint32_t>(key.words[2] >> 32)};
}

}  // namespace verbena::fabric::verbs
