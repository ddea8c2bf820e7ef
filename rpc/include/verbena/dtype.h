#pragma once
// DType: what one element of a tensor is. DLPack's triple (code, bits, lanes), the same in memory
// and on the wire, so a type that this library has no name for still travels.
//
//   DType t = verbena::kBFloat16;
//   t == verbena::kDTypeOf<float>;                                     // false
//   verbena::DTypeFromName("F8_E4M3", DTypeVocabulary::kSafetensors);  // kFloat8E4M3FN
#include <complex>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace verbena {

// DLPack's numbers.
enum class DTypeCode : uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kOpaqueHandle = 3,  // a pointer: refused by Tensor, it means nothing to a peer
  kBFloat = 4,
  kComplex = 5,
  kBool = 6,
  kFloat8E3M4 = 7,
  kFloat8E4M3 = 8,
  kFloat8E4M3B11FNUZ = 9,
  kFloat8E4M3FN = 10,
  kFloat8E4M3FNUZ = 11,
  kFloat8E5M2 = 12,
  kFloat8E5M2FNUZ = 13,
  kFloat8E8M0FNU = 14,
  kFloat6E2M3FN = 15,
  kFloat6E3M2FN = 16,
  kFloat4E2M1FN = 17,
};

class DType {
 public:
  // No type: bits() is 0.
  constexpr DType() = default;
  constexpr DType(DTypeCode code, uint8_t bits, uint16_t lanes = 1)
      : word_(static_cast<uint32_t>(code) << 24 | uint32_t{bits} << 16 | lanes) {}
  // The wire's form: code << 24 | bits << 16 | lanes. Any value is taken; Tensor refuses those
  // without a size.
  static constexpr DType FromWord(uint32_t word) {
    DType t;
    t.word_ = word;
    return t;
  }
  constexpr uint32_t word() const { return word_; }
  constexpr DTypeCode code() const { return static_cast<DTypeCode>(word_ >> 24); }
  constexpr int lane_bits() const { return static_cast<int>(word_ >> 16 & 0xff); }
  constexpr int lanes() const { return static_cast<int>(word_ & 0xffff); }
  // Of one element, all lanes. Elements of types below a byte are packed without gaps.
  constexpr int bits() const { return lane_bits() * lanes(); }

  // "float32", "float4_e2m1fn_x2"; for a type without a name "dtype(code 40, 12 bits, 3 lanes)".
  std::string DebugString() const;

  friend constexpr bool operator==(DType a, DType b) { return a.word_ == b.word_; }

 private:
  uint32_t word_ = 0;
};

inline constexpr DType kBool{DTypeCode::kBool, 8};
inline constexpr DType kInt4{DTypeCode::kInt, 4};
inline constexpr DType kInt8{DTypeCode::kInt, 8};
inline constexpr DType kInt16{DTypeCode::kInt, 16};
inline constexpr DType kInt32{DTypeCode::kInt, 32};
inline constexpr DType kInt64{DTypeCode::kInt, 64};
inline constexpr DType kUInt4{DTypeCode::kUInt, 4};
inline constexpr DType kUInt8{DTypeCode::kUInt, 8};
inline constexpr DType kUInt16{DTypeCode::kUInt, 16};
inline constexpr DType kUInt32{DTypeCode::kUInt, 32};
inline constexpr DType kUInt64{DTypeCode::kUInt, 64};
inline constexpr DType kFloat16{DTypeCode::kFloat, 16};
inline constexpr DType kBFloat16{DTypeCode::kBFloat, 16};
inline constexpr DType kFloat32{DTypeCode::kFloat, 32};
inline constexpr DType kFloat64{DTypeCode::kFloat, 64};
inline constexpr DType kComplex32{DTypeCode::kComplex, 32};
inline constexpr DType kComplex64{DTypeCode::kComplex, 64};
inline constexpr DType kComplex128{DTypeCode::kComplex, 128};
inline constexpr DType kFloat8E3M4{DTypeCode::kFloat8E3M4, 8};
inline constexpr DType kFloat8E4M3{DTypeCode::kFloat8E4M3, 8};
inline constexpr DType kFloat8E4M3B11FNUZ{DTypeCode::kFloat8E4M3B11FNUZ, 8};
inline constexpr DType kFloat8E4M3FN{DTypeCode::kFloat8E4M3FN, 8};
inline constexpr DType kFloat8E4M3FNUZ{DTypeCode::kFloat8E4M3FNUZ, 8};
inline constexpr DType kFloat8E5M2{DTypeCode::kFloat8E5M2, 8};
inline constexpr DType kFloat8E5M2FNUZ{DTypeCode::kFloat8E5M2FNUZ, 8};
inline constexpr DType kFloat8E8M0FNU{DTypeCode::kFloat8E8M0FNU, 8};
inline constexpr DType kFloat6E2M3FN{DTypeCode::kFloat6E2M3FN, 6};
inline constexpr DType kFloat6E3M2FN{DTypeCode::kFloat6E3M2FN, 6};
inline constexpr DType kFloat4E2M1FN{DTypeCode::kFloat4E2M1FN, 4};
// Two to a byte: how torch holds them.
inline constexpr DType kFloat4E2M1FNx2{DTypeCode::kFloat4E2M1FN, 4, 2};

// Whose word for a type. A vocabulary has no word for some types (KServe: none below 8 bits).
enum class DTypeVocabulary : uint8_t {
  kVerbena,      // "float32", as numpy and ml_dtypes say it
  kSafetensors,  // "F32"
  kKServe,       // "FP32"; BYTES is no type of fixed size and unknown here
  kTorch,        // "float32", without "torch."
};

// Any thread. NOT_FOUND names the type or the word and the vocabulary.
absl::StatusOr<absl::string_view> DTypeName(DType dtype, DTypeVocabulary vocabulary);
absl::StatusOr<DType> DTypeFromName(absl::string_view name, DTypeVocabulary vocabulary);

namespace internal {
template <class T>
constexpr DType DTypeOf() {
  constexpr auto kBits = static_cast<uint8_t>(8 * sizeof(T));
  if constexpr (std::is_same_v<T, bool>) return kBool;
  if constexpr (std::is_same_v<T, std::byte>) return kUInt8;
  if constexpr (std::is_integral_v<T>) {
    return DType(std::is_signed_v<T> ? DTypeCode::kInt : DTypeCode::kUInt, kBits);
  }
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
    return DType(DTypeCode::kFloat, kBits);
  }
  if constexpr (std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>) {
    return DType(DTypeCode::kComplex, kBits);
  }
  return DType();
}
}  // namespace internal

// The type of a C++ element. Specialise it for a half or fp8 class of your own:
//   template <> inline constexpr verbena::DType verbena::kDTypeOf<my::Half> = verbena::kFloat16;
template <class T>
inline constexpr DType kDTypeOf = internal::DTypeOf<T>();

}  // namespace verbena
