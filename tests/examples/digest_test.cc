#include "examples/03_inference/digest.h"

#include <string>

#include "tests/catch.h"

namespace verbena::examples {
namespace {

absl::Span<const std::byte> BytesOf(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

}  // namespace

TEST_CASE("a digest is SHA-256's of the standard's examples", "[example]") {
  CHECK(Sha256Hex({}) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(Sha256Hex(BytesOf("abc")) ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_CASE("a digest of parts is the digest of the whole", "[example]") {
  Sha256 digest;
  digest.Update(BytesOf("a"));
  digest.Update({});
  digest.Update(BytesOf("bc"));
  CHECK(digest.Hex() == Sha256Hex(BytesOf("abc")));
}

}  // namespace verbena::examples
