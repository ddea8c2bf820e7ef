#include "examples/03_inference/digest.h"

#include <openssl/evp.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"

namespace verbena::examples {
namespace {

// OpenSSL's digest calls fail only for want of memory or when a policy forbids SHA-256: nothing to
// go on with.
void Must(bool ok) {
  if (ok) return;
  std::fputs("fatal: OpenSSL cannot compute SHA-256\n", stderr);
  std::abort();
}

}  // namespace

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  Must(state_->context != nullptr &&
       EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

void Sha256::Update(absl::Span<const std::byte> bytes) {
  Must(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1);
}

std::string Sha256::Hex() {
  unsigned char raw[EVP_MAX_MD_SIZE];
  unsigned int raw_bytes = 0;
  Must(EVP_DigestFinal_ex(state_->context, raw, &raw_bytes) == 1);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(raw), raw_bytes));
}

std::string Sha256Hex(absl::Span<const std::byte> bytes) {
  Sha256 digest;
  digest.Update(bytes);
  return digest.Hex();
}

}  // namespace verbena::examples
