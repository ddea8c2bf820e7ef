#include "verbena/dtype.h"

#include <complex>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/catch.h"

namespace verbena {
namespace {

constexpr DTypeVocabulary kVocabularies[] = {DTypeVocabulary::kVerbena,
                                             DTypeVocabulary::kSafetensors,
                                             DTypeVocabulary::kKServe, DTypeVocabulary::kTorch};

constexpr DType kAll[] = {
    kBool,           kInt4,           kInt8,
    kInt16,          kInt32,          kInt64,
    kUInt4,          kUInt8,          kUInt16,
    kUInt32,         kUInt64,         kFloat16,
    kBFloat16,       kFloat32,        kFloat64,
    kComplex32,      kComplex64,      kComplex128,
    kFloat8E3M4,     kFloat8E4M3,     kFloat8E4M3B11FNUZ,
    kFloat8E4M3FN,   kFloat8E4M3FNUZ, kFloat8E5M2,
    kFloat8E5M2FNUZ, kFloat8E8M0FNU,  kFloat6E2M3FN,
    kFloat6E3M2FN,   kFloat4E2M1FN,   kFloat4E2M1FNx2,
};

TEST_CASE("each name of each vocabulary leads back to its type", "[dtype]") {
  for (const DTypeVocabulary vocabulary : kVocabularies) {
    std::set<std::string> names;
    for (const DType dtype : kAll) {
      const absl::StatusOr<absl::string_view> name = DTypeName(dtype, vocabulary);
      if (!name.ok()) {
        CHECK(vocabulary != DTypeVocabulary::kVerbena);
        CHECK(absl::IsNotFound(name.status()));
        continue;
      }
      CHECK(names.insert(std::string(name->data(), name->size())).second);
      const absl::StatusOr<DType> back = DTypeFromName(*name, vocabulary);
      REQUIRE(back.ok());
      CHECK(*back == dtype);
    }
    CHECK(names.size() >= 13);
  }
}

TEST_CASE("the words are those that the other projects use", "[dtype]") {
  CHECK(*DTypeFromName("BF16", DTypeVocabulary::kSafetensors) == kBFloat16);
  CHECK(*DTypeFromName("F8_E4M3", DTypeVocabulary::kSafetensors) == kFloat8E4M3FN);
  CHECK(*DTypeFromName("F8_E5M2", DTypeVocabulary::kSafetensors) == kFloat8E5M2);
  CHECK(*DTypeFromName("FP16", DTypeVocabulary::kKServe) == kFloat16);
  CHECK(*DTypeFromName("float8_e4m3fn", DTypeVocabulary::kTorch) == kFloat8E4M3FN);
  CHECK(*DTypeFromName("complex64", DTypeVocabulary::kTorch) == kComplex64);
  CHECK(absl::IsNotFound(DTypeFromName("BYTES", DTypeVocabulary::kKServe).status()));
  CHECK(absl::IsNotFound(DTypeFromName("", DTypeVocabulary::kKServe).status()));
  CHECK(absl::IsNotFound(DTypeName(kFloat8E5M2, DTypeVocabulary::kKServe).status()));
}

TEST_CASE("an error repeats only the beginning of a hostile name", "[dtype][hostile]") {
  const std::string name(1 << 20, 'x');
  CHECK(DTypeFromName(name, DTypeVocabulary::kSafetensors).status().message().size() < 200);
}

TEST_CASE("the numbers are DLPack's", "[dtype]") {
  CHECK(kFloat32.word() == 0x02200001);
  CHECK(kBFloat16.word() == 0x04100001);
  CHECK(kFloat8E8M0FNU.word() == 0x0e080001);
  CHECK(kFloat4E2M1FNx2.word() == 0x11040002);
  for (const DType dtype : kAll) CHECK(DType::FromWord(dtype.word()) == dtype);
  CHECK(DType::FromWord(0xffffffff).bits() == 255 * 65535);
  CHECK(DType::FromWord(0x280c0003).DebugString() == "dtype(code 40, 12 bits, 3 lanes)");
  CHECK(DType().bits() == 0);
}

TEST_CASE("C++ types have the dtype of their size and sign", "[dtype]") {
  CHECK(kDTypeOf<bool> == kBool);
  CHECK(kDTypeOf<std::byte> == kUInt8);
  CHECK(kDTypeOf<long long> == kInt64);
  CHECK(kDTypeOf<unsigned long> == kUInt64);
  CHECK(kDTypeOf<int16_t> == kInt16);
  CHECK(kDTypeOf<double> == kFloat64);
  CHECK(kDTypeOf<std::complex<float>> == kComplex64);
  CHECK(kDTypeOf<std::string>.bits() == 0);
}

}  // namespace
}  // namespace verbena
