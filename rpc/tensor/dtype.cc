#include "verbena/dtype.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace verbena {
namespace {

struct Row {
  DType dtype;
  absl::string_view verbena, safetensors, kserve, torch;  // empty: no word for it
};

constexpr Row kRows[] = {
    {kBool, "bool", "BOOL", "BOOL", "bool"},
    {kInt4, "int4", "", "", "int4"},
    {kInt8, "int8", "I8", "INT8", "int8"},
    {kInt16, "int16", "I16", "INT16", "int16"},
    {kInt32, "int32", "I32", "INT32", "int32"},
    {kInt64, "int64", "I64", "INT64", "int64"},
    {kUInt4, "uint4", "", "", "uint4"},
    {kUInt8, "uint8", "U8", "UINT8", "uint8"},
    {kUInt16, "uint16", "U16", "UINT16", "uint16"},
    {kUInt32, "uint32", "U32", "UINT32", "uint32"},
    {kUInt64, "uint64", "U64", "UINT64", "uint64"},
    {kFloat16, "float16", "F16", "FP16", "float16"},
    {kBFloat16, "bfloat16", "BF16", "BF16", "bfloat16"},
    {kFloat32, "float32", "F32", "FP32", "float32"},
    {kFloat64, "float64", "F64", "FP64", "float64"},
    {kComplex32, "complex32", "", "", "complex32"},
    {kComplex64, "complex64", "C64", "", "complex64"},
    {kComplex128, "complex128", "", "", "complex128"},
    {kFloat8E3M4, "float8_e3m4", "", "", ""},
    {kFloat8E4M3, "float8_e4m3", "", "", ""},
    {kFloat8E4M3B11FNUZ, "float8_e4m3b11fnuz", "", "", ""},
    {kFloat8E4M3FN, "float8_e4m3fn", "F8_E4M3", "", "float8_e4m3fn"},
    {kFloat8E4M3FNUZ, "float8_e4m3fnuz", "F8_E4M3FNUZ", "", "float8_e4m3fnuz"},
    {kFloat8E5M2, "float8_e5m2", "F8_E5M2", "", "float8_e5m2"},
    {kFloat8E5M2FNUZ, "float8_e5m2fnuz", "F8_E5M2FNUZ", "", "float8_e5m2fnuz"},
    {kFloat8E8M0FNU, "float8_e8m0fnu", "F8_E8M0", "", "float8_e8m0fnu"},
    {kFloat6E2M3FN, "float6_e2m3fn", "F6_E2M3", "", ""},
    {kFloat6E3M2FN, "float6_e3m2fn", "F6_E3M2", "", ""},
    {kFloat4E2M1FN, "float4_e2m1fn", "F4", "", ""},
    {kFloat4E2M1FNx2, "float4_e2m1fn_x2", "", "", "float4_e2m1fn_x2"},
};

absl::string_view Word(const Row& row, DTypeVocabulary vocabulary) {
  switch (vocabulary) {
    case DTypeVocabulary::kVerbena:
      return row.verbena;
    case DTypeVocabulary::kSafetensors:
      return row.safetensors;
    case DTypeVocabulary::kKServe:
      return row.kserve;
    case DTypeVocabulary::kTorch:
      return row.torch;
  }
  return "";
}

absl::string_view VocabularyName(DTypeVocabulary vocabulary) {
  switch (vocabulary) {
    case DTypeVocabulary::kVerbena:
      return "verbena";
    case DTypeVocabulary::kSafetensors:
      return "safetensors";
    case DTypeVocabulary::kKServe:
      return "KServe";
    case DTypeVocabulary::kTorch:
      return "torch";
  }
  return "unknown";
}

}  // namespace

absl::StatusOr<absl::string_view> DTypeName(DType dtype, DTypeVocabulary vocabulary) {
  for (const Row& row : kRows) {
    if (!(row.dtype == dtype)) continue;
    const absl::string_view word = Word(row, vocabulary);
    if (!word.empty()) return word;
    break;
  }
  return absl::NotFoundError(
      absl::StrCat(VocabularyName(vocabulary), " has no word for ", dtype.DebugString()));
}

absl::StatusOr<DType> DTypeFromName(absl::string_view name, DTypeVocabulary vocabulary) {
  for (const Row& row : kRows) {
    if (!name.empty() && Word(row, vocabulary) == name) return row.dtype;
  }
  // A name may come from a file or a peer: do not repeat more of it than a person can read.
  return absl::NotFoundError(absl::StrCat("'", name.substr(0, 64), "' is no type of the ",
                                          VocabularyName(vocabulary), " vocabulary"));
}

std::string DType::DebugString() const {
  for (const Row& row : kRows) {
    if (row.dtype == *this) return std::string(row.verbena.data(), row.verbena.size());
  }
  return absl::StrCat("dtype(code ", static_cast<int>(code()), ", ", lane_bits(), " bits, ",
                      lanes(), " lanes)");
}

}  // namespace verbena
