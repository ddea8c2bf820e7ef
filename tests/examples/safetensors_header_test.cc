#include <string>

#include "absl/strings/str_cat.h"
#include "examples/03_inference/safetensors.h"
#include "tests/catch.h"

namespace verbena::safetensors {
namespace {

using Catch::ContainsSubstring;

// The error of a header that must not parse.
std::string ErrorOf(const std::string& header, uint64_t data_bytes) {
  absl::StatusOr<Header> parsed = ParseHeader(header, data_bytes);
  if (parsed.ok()) return "parsed";
  CHECK(parsed.status().code() == absl::StatusCode::kInvalidArgument);
  return std::string(parsed.status().message());
}

// {"NAME":{"dtype":"U8","shape":[BYTES],"data_offsets":[BEGIN,END]}} without the braces around it.
std::string Bytes(const std::string& name, uint64_t begin, uint64_t end) {
  return absl::StrCat("\"", name, R"(":{"dtype":"U8","shape":[)", end - begin,
                      R"(],"data_offsets":[)", begin, ",", end, "]}");
}
std::string One(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return absl::StrCat(R"({"t":{"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)",
                      offsets, "}}");
}

}  // namespace

TEST_CASE("a header gives its tensors in the order of their data", "[safetensors]") {
  // Entries against the order of the data, keys in any order, metadata, padding.
  absl::StatusOr<Header> header = ParseHeader(
      R"({"b":{"shape":[2,3],"data_offsets":[8,20],"dtype":"F16"},"__metadata__":{"k":"v"},)"
      R"("a":{"dtype":"I64","shape":[],"data_offsets":[0,8]}}   )",
      20);
  // Expect: a scalar, then the matrix.
  REQUIRE(header.ok());
  REQUIRE(header->tensors.size() == 2);
  CHECK(header->tensors[0].name == "a");
  CHECK(header->tensors[0].shape.empty());
  CHECK(header->tensors[0].bytes == 8);
  CHECK(header->tensors[1].name == "b");
  CHECK(header->tensors[1].shape == std::vector<int64_t>{2, 3});
  CHECK(header->tensors[1].offset == 8);
  CHECK(header->tensors[1].dtype == DTypeOf("F16"));
  CHECK(header->metadata.at("k") == "v");
}

TEST_CASE("each dtype has DLPack's triple", "[safetensors]") {
  CHECK(DTypeOf("F64") == 0x02400001);
  CHECK(DTypeOf("F32") == 0x02200001);
  CHECK(DTypeOf("F16") == 0x02100001);
  CHECK(DTypeOf("BF16") == 0x04100001);
  CHECK(DTypeOf("I64") == 0x00400001);
  CHECK(DTypeOf("I32") == 0x00200001);
  CHECK(DTypeOf("I16") == 0x00100001);
  CHECK(DTypeOf("I8") == 0x00080001);
  CHECK(DTypeOf("U64") == 0x01400001);
  CHECK(DTypeOf("U32") == 0x01200001);
  CHECK(DTypeOf("U16") == 0x01100001);
  CHECK(DTypeOf("U8") == 0x01080001);
  CHECK(DTypeOf("BOOL") == 0x06080001);
  CHECK(DTypeOf("F8_E4M3") == 0x0a080001);
  CHECK(DTypeOf("F8_E5M2") == 0x0c080001);
  CHECK(DTypeOf("float32") == 0);
  CHECK(DTypeOf("") == 0);
}

TEST_CASE("a file of no tensors and tensors of no elements are valid", "[safetensors]") {
  CHECK(ParseHeader("{}", 0).ok());
  CHECK(ParseHeader(absl::StrCat("{", Bytes("none", 0, 0), "}"), 0).ok());
  // Empty tensors at the begin, between two others and at the end.
  absl::StatusOr<Header> header = ParseHeader(
      absl::StrCat("{", Bytes("a", 0, 4), ",", Bytes("end", 9, 9), ",", Bytes("b", 4, 9), ",",
                   Bytes("mid", 4, 4), ",", Bytes("begin", 0, 0), "}"),
      9);
  REQUIRE(header.ok());
  REQUIRE(header->tensors.size() == 5);
  CHECK(header->tensors[0].name == "begin");
  CHECK(header->tensors[4].name == "end");
  // An empty tensor may not point into another one, nor past the data.
  CHECK_THAT(ErrorOf(absl::StrCat("{", Bytes("a", 0, 4), ",", Bytes("in", 2, 2), "}"), 4),
             ContainsSubstring("'in'"));
  CHECK_THAT(ErrorOf(absl::StrCat("{", Bytes("a", 0, 4), ",", Bytes("out", 5, 5), "}"), 4),
             ContainsSubstring("'out'"));
}

TEST_CASE("ranges that do not tile the data are refused", "[safetensors]") {
  const auto two = [](uint64_t a0, uint64_t a1, uint64_t b0, uint64_t b1) {
    return absl::StrCat("{", Bytes("a", a0, a1), ",", Bytes("b", b0, b1), "}");
  };
  REQUIRE(ParseHeader(two(0, 4, 4, 8), 8).ok());
  CHECK(ErrorOf(two(0, 4, 3, 8), 8) ==
        "tensor 'b': data_offsets begin at 3, inside the tensor that ends at 4");
  CHECK(ErrorOf(two(0, 4, 0, 4), 4) ==
        "tensor 'b': data_offsets begin at 0, inside the tensor that ends at 4");
  CHECK(ErrorOf(two(0, 4, 5, 8), 8) ==
        "tensor 'b': data_offsets begin at 5, leaving a hole after 4");
  CHECK(ErrorOf(two(1, 4, 4, 8), 8) ==
        "tensor 'a': data_offsets begin at 1, leaving a hole after 0");
  CHECK(ErrorOf(two(0, 4, 4, 9), 8) ==
        "tensor 'b': data_offsets end at 9, the file has 8 bytes of data");
  CHECK(ErrorOf(two(0, 4, 4, 8), 9) == "the tensors end at 8, the file has 9 bytes of data");
  CHECK(ErrorOf("{}", 1) == "the tensors end at 0, the file has 1 bytes of data");
}

TEST_CASE("a range that disagrees with dtype and shape is refused", "[safetensors]") {
  CHECK(ErrorOf(One("F32", "[2]", "[0,4]"), 4) ==
        "tensor 't': data_offsets hold 4 bytes, but dtype and shape need 8");
  CHECK(ErrorOf(One("F32", "[0]", "[0,4]"), 4) ==
        "tensor 't': data_offsets hold 4 bytes, but dtype and shape need 0");
  CHECK(ErrorOf(One("U8", "[4]", "[4,0]"), 4) ==
        "tensor 't': data_offsets end at 0, before their begin 4");
}

TEST_CASE("sizes that overflow are refused", "[safetensors]") {
  CHECK(ErrorOf(One("U8", "[4294967296,4294967296]", "[0,0]"), 0) ==
        "tensor 't': dtype times shape is above 2^64 - 1 bytes");
  // 2^61 elements of 8 bytes are 2^64: 0 after a wrap.
  CHECK_THAT(ErrorOf(One("F64", "[2305843009213693952]", "[0,0]"), 0),
             ContainsSubstring("above 2^64 - 1"));
  CHECK_THAT(ErrorOf(One("U8", "[9223372036854775808]", "[0,0]"), 0),
             ContainsSubstring("above 2^63 - 1"));
  // Beyond 64 bits JSON numbers become floating point.
  CHECK_THAT(ErrorOf(One("U8", "[18446744073709551616]", "[0,0]"), 0),
             ContainsSubstring("shape holds the number"));
  CHECK_THAT(ErrorOf(One("U8", "[1]", "[18446744073709551615,18446744073709551616]"), 1),
             ContainsSubstring("data_offsets holds the number"));
  CHECK_THAT(ErrorOf(One("U8", "[1]", "[18446744073709551614,18446744073709551615]"), 1),
             ContainsSubstring("the file has 1 bytes"));
  CHECK_THAT(ErrorOf(One("U8", "[1]", "[1e400,1]"), 1), ContainsSubstring("not JSON"));
}

TEST_CASE("an entry of wrong types is refused and named", "[safetensors]") {
  CHECK(ErrorOf(One("F33", "[1]", "[0,4]"), 4) == "tensor 't': unknown dtype 'F33'");
  CHECK_THAT(ErrorOf(One("F32", "[-1]", "[0,4]"), 4),
             ContainsSubstring("shape holds the negative number -1"));
  CHECK_THAT(ErrorOf(One("F32", "[1.0]", "[0,4]"), 4),
             ContainsSubstring("shape holds the number '1.0'"));
  CHECK_THAT(ErrorOf(One("F32", "[\"1\"]", "[0,4]"), 4),
             ContainsSubstring("shape holds the string '1'"));
  CHECK_THAT(ErrorOf(One("F32", "[true]", "[0,4]"), 4), ContainsSubstring("a boolean"));
  CHECK_THAT(ErrorOf(One("F32", "1", "[0,4]"), 4), ContainsSubstring("'shape' holds the number 1"));
  CHECK_THAT(ErrorOf(One("F32", "[1]", "[0]"), 4),
             ContainsSubstring("data_offsets has 1 entries, expected 2"));
  CHECK_THAT(ErrorOf(One("F32", "[1]", "[0,4,8]"), 4), ContainsSubstring("more than 2"));
  CHECK_THAT(ErrorOf(One("F32", "[1]", "[-0,4]"), 4), ContainsSubstring("negative number"));
  CHECK_THAT(ErrorOf(One("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1),
             ContainsSubstring("more than 8 dimensions"));
  CHECK_THAT(ErrorOf(R"({"t":{"dtype":["F32"]}})", 0), ContainsSubstring("'dtype' holds an array"));
  CHECK_THAT(ErrorOf(R"({"t":{"dtype":7}})", 0),
             ContainsSubstring("'dtype' holds the number 7, expected a string"));
  CHECK_THAT(ErrorOf(R"({"t":{"dtype":null}})", 0), ContainsSubstring("'dtype' holds null"));
  CHECK_THAT(ErrorOf(R"({"t":[]})", 0), ContainsSubstring("'t' is an array"));
  CHECK_THAT(ErrorOf(R"({"t":{}})", 0), ContainsSubstring("dtype is missing"));
  CHECK_THAT(ErrorOf(R"({"t":{"dtype":"U8","data_offsets":[0,1]}})", 1),
             ContainsSubstring("shape is missing"));
  CHECK_THAT(ErrorOf(R"({"t":{"dtype":"U8","shape":[1]}})", 1),
             ContainsSubstring("data_offsets is missing"));
  CHECK_THAT(ErrorOf(R"({"t":{"stride":[1]}})", 1), ContainsSubstring("unknown key 'stride'"));
}

TEST_CASE("a name or key that appears twice is refused", "[safetensors]") {
  CHECK(ErrorOf(absl::StrCat("{", Bytes("a", 0, 1), ",", Bytes("a", 1, 2), "}"), 2) ==
        "name 'a' appears twice");
  // The same name, spelled with an escape.
  CHECK(ErrorOf(absl::StrCat("{", Bytes("a", 0, 1), ",", Bytes("\\u0061", 1, 2), "}"), 2) ==
        "name 'a' appears twice");
  CHECK_THAT(ErrorOf(R"({"t":{"dtype":"U8","dtype":"U8"}})", 0),
             ContainsSubstring("key 'dtype' appears twice"));
  CHECK_THAT(ErrorOf(R"({"__metadata__":{"a":"1","a":"2"}})", 0),
             ContainsSubstring("'a' appears twice"));
  CHECK_THAT(ErrorOf(R"({"__metadata__":{},"__metadata__":{}})", 0),
             ContainsSubstring("'__metadata__' appears twice"));
}

TEST_CASE("metadata holds strings only", "[safetensors]") {
  CHECK(ParseHeader(R"({"__metadata__":{}})", 0).ok());
  CHECK_THAT(ErrorOf(R"({"__metadata__":{"a":1}})", 0),
             ContainsSubstring("key 'a' holds the number 1, expected a string"));
  CHECK_THAT(ErrorOf(R"({"__metadata__":{"a":{}}})", 0), ContainsSubstring("holds an object"));
  CHECK_THAT(ErrorOf(R"({"__metadata__":"x"})", 0), ContainsSubstring("expected an object"));
}

TEST_CASE("what is not a JSON object is refused", "[safetensors]") {
  CHECK_THAT(ErrorOf("", 0),
             ContainsSubstring("the header has 0 bytes, allowed are 2 to 100000000"));
  CHECK_THAT(ErrorOf("{", 0), ContainsSubstring("has 1 bytes"));
  CHECK_THAT(ErrorOf("[]", 0), ContainsSubstring("does not begin with '{'"));
  CHECK_THAT(ErrorOf(" {}", 0), ContainsSubstring("does not begin with '{'"));
  CHECK_THAT(ErrorOf("{}{}", 0), ContainsSubstring("not JSON"));
  CHECK_THAT(ErrorOf("{\"a\"", 0), ContainsSubstring("not JSON"));
  CHECK_THAT(ErrorOf("{}/**/", 0), ContainsSubstring("not JSON"));
  CHECK_THAT(ErrorOf(std::string("{}\0", 3), 0), ContainsSubstring("zero byte at 2"));
  CHECK_THAT(ErrorOf("{\"\xff\":{}}", 0), ContainsSubstring("not JSON"));
}

TEST_CASE("deep nesting is refused without recursion", "[safetensors]") {
  const size_t deep = 1'000'000;
  CHECK_THAT(ErrorOf(absl::StrCat(R"({"t":{"shape":)", std::string(deep, '[')), 0),
             ContainsSubstring("an array"));
  std::string objects = "{";
  for (size_t i = 0; i < deep; ++i) objects += R"("a":{)";
  CHECK_THAT(ErrorOf(objects, 0), ContainsSubstring("unknown key 'a'"));
}

TEST_CASE("a header above a limit is refused with the limit's value", "[safetensors]") {
  // One name too long.
  CHECK_THAT(ErrorOf(absl::StrCat("{", Bytes(std::string(kNameBytesMax + 1, 'n'), 0, 0), "}"), 0),
             ContainsSubstring("has 4097 bytes, the limit is 4096"));
  // One tensor too many.
  std::string header = "{";
  for (size_t i = 0; i <= kTensorCountMax; ++i)
    absl::StrAppend(&header, i == 0 ? "" : ",", Bytes(absl::StrCat(i), 0, 0));
  CHECK_THAT(ErrorOf(header + "}", 0), ContainsSubstring("more than 262144 tensors"));
  // One byte too many.
  std::string padded(kHeaderBytesMax + 1, ' ');
  padded.replace(0, 2, "{]");
  CHECK_THAT(ErrorOf(padded, 0),
             ContainsSubstring("the header has 100000001 bytes, allowed are 2 to 100000000"));
  // Expect of the limit itself: looked at, and found to be no JSON.
  padded.pop_back();
  CHECK_THAT(ErrorOf(padded, 0), ContainsSubstring("not JSON"));
}

TEST_CASE("an error shows a hostile name escaped and cut", "[safetensors]") {
  const std::string error =
      ErrorOf(absl::StrCat("{\"\\u001b[31m", std::string(4000, 'x'), "\":1}"), 0);
  CHECK_THAT(error, ContainsSubstring("\\x1b[31m"));
  CHECK(error.size() < 200);
}

}  // namespace verbena::safetensors
