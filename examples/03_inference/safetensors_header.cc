#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "examples/03_inference/safetensors.h"
#include "nlohmann/json.hpp"

namespace verbena::safetensors {
namespace {

// DLPack 1.1's DLDataTypeCode.
enum Code : uint32_t {
  kInt = 0,
  kUint = 1,
  kFloat = 2,
  kBfloat = 4,
  kBool = 6,
  kE4m3fn = 10,
  kE5m2 = 12
};

struct DTypeName {
  absl::string_view name;
  uint32_t code;
  uint32_t bits;
};
constexpr DTypeName kDTypes[] = {
    {"F64", kFloat, 64}, {"F32", kFloat, 32},   {"F16", kFloat, 16},     {"BF16", kBfloat, 16},
    {"I64", kInt, 64},   {"I32", kInt, 32},     {"I16", kInt, 16},       {"I8", kInt, 8},
    {"U64", kUint, 64},  {"U32", kUint, 32},    {"U16", kUint, 16},      {"U8", kUint, 8},
    {"BOOL", kBool, 8},  {"F8_E5M2", kE5m2, 8}, {"F8_E4M3", kE4m3fn, 8},
};

uint64_t ElementBytes(uint32_t dtype) { return (dtype >> 16 & 0xff) / 8; }

// A text of the file as it may stand in an error: no control characters, no megabytes.
std::string Quoted(absl::string_view text) {
  constexpr size_t shown = 64;
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, shown)),
                      text.size() > shown ? "...'" : "'");
}

// Gets the events of the JSON parser. The grammar is flat, so a state and no stack: whatever does
// not belong to the state is refused, which bounds nesting at three.
class Builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Header& header() { return header_; }
  const absl::Status& status() const { return status_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_float(number_float_t, const string_t& text) override {
    return Unexpected(absl::StrCat("the number ", Quoted(text)));
  }
  // Called for negative numbers only.
  bool number_integer(number_integer_t value) override {
    return Unexpected(absl::StrCat("the negative number ", value));
  }
  bool number_unsigned(number_unsigned_t value) override;
  bool string(string_t& value) override;
  bool binary(binary_t&) override { return Unexpected("binary data"); }
  bool start_object(std::size_t) override;
  bool key(string_t& name) override;
  bool end_object() override;
  bool start_array(std::size_t) override;
  bool end_array() override;
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    return Fail(absl::StrCat("the header is not JSON, at byte ", position, " of it: ",
                             absl::CHexEscape(absl::string_view(error.what()).substr(0, 200))));
  }

 private:
  enum class State { kStart, kFile, kMetadata, kTensor, kShape, kOffsets, kEnd };

  bool Fail(const std::string& why) {
    status_ = absl::InvalidArgumentError(why);
    return false;
  }
  bool FailTensor(absl::string_view why) {
    return Fail(absl::StrCat("tensor ", Quoted(tensor_.name), ": ", why));
  }
  bool Unexpected(absl::string_view what);
  bool TensorKey(const std::string& name);
  bool FinishTensor();

  State state_ = State::kStart;
  Header header_;
  absl::Status status_ = absl::OkStatus();
  // Of the innermost object that has keys.
  std::string key_;
  absl::flat_hash_set<std::string> names_;
  bool has_metadata_ = false;
  // The tensor being read, and which of its keys were seen.
  TensorInfo tensor_;
  std::vector<uint64_t> offsets_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
};

bool Builder::Unexpected(absl::string_view what) {
  switch (state_) {
    case State::kStart:
      return Fail(absl::StrCat("the header is ", what, ", expected an object"));
    case State::kFile:
      return Fail(
          absl::StrCat("the value of ", Quoted(key_), " is ", what, ", expected an object"));
    case State::kMetadata:
      return Fail(
          absl::StrCat("__metadata__ key ", Quoted(key_), " holds ", what, ", expected a string"));
    case State::kTensor:
      return FailTensor(absl::StrCat("key ", Quoted(key_), " holds ", what, ", expected ",
                                     key_ == "dtype" ? "a string" : "an array"));
    case State::kShape:
      return FailTensor(absl::StrCat("shape holds ", what, ", expected integers of 0 or more"));
    case State::kOffsets:
      return FailTensor(
          absl::StrCat("data_offsets holds ", what, ", expected integers of 0 or more"));
    case State::kEnd:
      break;
  }
  return Fail(absl::StrCat(what, " after the end of the header's object"));
}

bool Builder::number_unsigned(number_unsigned_t value) {
  if (state_ == State::kShape) {
    if (tensor_.shape.size() == kRankMax) {
      return FailTensor(absl::StrCat("more than ", kRankMax, " dimensions"));
    }
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return FailTensor(absl::StrCat("dimension ", value, " is above 2^63 - 1"));
    }
    tensor_.shape.push_back(static_cast<int64_t>(value));
    return true;
  }
  if (state_ == State::kOffsets) {
    if (offsets_.size() == 2) return FailTensor("data_offsets has more than 2 entries");
    offsets_.push_back(value);
    return true;
  }
  return Unexpected(absl::StrCat("the number ", value));
}

bool Builder::string(string_t& value) {
  if (state_ == State::kMetadata) {
    if (!header_.metadata.emplace(key_, std::move(value)).second) {
      return Fail(absl::StrCat("__metadata__ key ", Quoted(key_), " appears twice"));
    }
    return true;
  }
  if (state_ == State::kTensor && key_ == "dtype") {
    tensor_.dtype = DTypeOf(value);
    return tensor_.dtype != 0 || FailTensor(absl::StrCat("unknown dtype ", Quoted(value)));
  }
  return Unexpected(absl::StrCat("the string ", Quoted(value)));
}

bool Builder::start_object(std::size_t) {
  if (state_ == State::kStart) {
    state_ = State::kFile;
    return true;
  }
  if (state_ != State::kFile) return Unexpected("an object");
  if (key_ == "__metadata__") {
    state_ = State::kMetadata;
    return true;
  }
  if (header_.tensors.size() == kTensorCountMax) {
    return Fail(absl::StrCat("more than ", kTensorCountMax, " tensors"));
  }
  tensor_ = TensorInfo();
  tensor_.name = key_;
  offsets_.clear();
  has_dtype_ = has_shape_ = has_offsets_ = false;
  state_ = State::kTensor;
  return true;
}

bool Builder::key(string_t& name) {
  if (name.size() > kNameBytesMax) {
    return Fail(absl::StrCat("key ", Quoted(name), " has ", name.size(), " bytes, the limit is ",
                             kNameBytesMax));
  }
  if (state_ == State::kTensor) return TensorKey(name);
  if (state_ == State::kFile) {
    const bool twice =
        name == "__metadata__" ? std::exchange(has_metadata_, true) : !names_.insert(name).second;
    if (twice) return Fail(absl::StrCat("name ", Quoted(name), " appears twice"));
  }
  key_ = name;
  return true;
}

bool Builder::TensorKey(const std::string& name) {
  bool* seen = name == "dtype"          ? &has_dtype_
               : name == "shape"        ? &has_shape_
               : name == "data_offsets" ? &has_offsets_
                                        : nullptr;
  if (seen == nullptr) return FailTensor(absl::StrCat("unknown key ", Quoted(name)));
  if (std::exchange(*seen, true))
    return FailTensor(absl::StrCat("key ", Quoted(name), " appears twice"));
  key_ = name;
  return true;
}

bool Builder::end_object() {
  switch (state_) {
    case State::kTensor:
      if (!FinishTensor()) return false;
      state_ = State::kFile;
      return true;
    case State::kMetadata:
      state_ = State::kFile;
      return true;
    default:
      state_ = State::kEnd;
      return true;
  }
}

bool Builder::start_array(std::size_t) {
  if (state_ != State::kTensor || key_ == "dtype") return Unexpected("an array");
  state_ = key_ == "shape" ? State::kShape : State::kOffsets;
  return true;
}

bool Builder::end_array() {
  if (state_ == State::kOffsets && offsets_.size() != 2) {
    return FailTensor(absl::StrCat("data_offsets has ", offsets_.size(), " entries, expected 2"));
  }
  state_ = State::kTensor;
  return true;
}

// Everything that one entry can be wrong in by itself.
bool Builder::FinishTensor() {
  if (!has_dtype_) return FailTensor("dtype is missing");
  if (!has_shape_) return FailTensor("shape is missing");
  if (!has_offsets_) return FailTensor("data_offsets is missing");
  uint64_t bytes = ElementBytes(tensor_.dtype);
  for (int64_t dimension : tensor_.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dimension), &bytes)) {
      return FailTensor("dtype times shape is above 2^64 - 1 bytes");
    }
  }
  const uint64_t begin = offsets_[0], end = offsets_[1];
  if (end < begin)
    return FailTensor(absl::StrCat("data_offsets end at ", end, ", before their begin ", begin));
  if (end - begin != bytes) {
    return FailTensor(absl::StrCat("data_offsets hold ", end - begin,
                                   " bytes, but dtype and shape need ", bytes));
  }
  tensor_.offset = begin;
  tensor_.bytes = bytes;
  header_.tensors.push_back(std::move(tensor_));
  return true;
}

// Sorts the tensors by offset and checks that they cover [0, data_bytes) exactly.
absl::Status CheckCoverage(std::vector<TensorInfo>& tensors, uint64_t data_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    // An empty tensor stands before the one that begins at the same place; names settle the rest.
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  uint64_t covered = 0;
  for (const TensorInfo& tensor : tensors) {
    const uint64_t end =
        tensor.offset + tensor.bytes;  // Was an offset in the file: it does not wrap.
    if (end > data_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", Quoted(tensor.name), ": data_offsets end at ", end,
                       ", the file has ", data_bytes, " bytes of data"));
    }
    if (tensor.offset != covered) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", Quoted(tensor.name), ": data_offsets begin at ", tensor.offset,
          tensor.offset < covered ? ", inside the tensor that ends at " : ", leaving a hole after ",
          covered));
    }
    covered = end;
  }
  if (covered != data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the tensors end at ", covered, ", the file has ", data_bytes, " bytes of data"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Header> ParseHeader(absl::string_view header, uint64_t data_bytes) {
  if (header.size() < kHeaderBytesMin || header.size() > kHeaderBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the header has ", header.size(),
                                                   " bytes, allowed are ", kHeaderBytesMin, " to ",
                                                   kHeaderBytesMax));
  }
  if (header.front() != '{')
    return absl::InvalidArgumentError("the header does not begin with '{'");
  // The JSON parser takes a zero byte for the end, which would let anything follow it.
  if (size_t zero = header.find('\0'); zero != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("the header is not JSON: zero byte at ", zero));
  }
  Builder builder;
  if (!nlohmann::json::sax_parse(header.data(), header.data() + header.size(), &builder))
    return builder.status();
  if (absl::Status s = CheckCoverage(builder.header().tensors, data_bytes); !s.ok()) return s;
  return std::move(builder.header());
}

uint32_t DTypeOf(absl::string_view name) {
  for (const DTypeName& dtype : kDTypes) {
    if (dtype.name == name) return dtype.code << 24 | dtype.bits << 16 | 1;
  }
  return 0;
}

}  // namespace verbena::safetensors
