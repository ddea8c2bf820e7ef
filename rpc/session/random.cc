#include "rpc/session/random.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/escaping.h"
#include "rpc/base/check.h"

namespace verbena::session {
namespace {

void Fill(void* to, size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n = ::getrandom(at, bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    VERBENA_CHECK(n > 0, "getrandom: ", std::strerror(errno));
    at += n;
    bytes -= static_cast<size_t>(n);
  }
}

}  // namespace

wire::HelloToken RandomToken() {
  wire::HelloToken token;
  Fill(token.data(), token.size());
  return token;
}

std::string RandomHex(size_t bytes) {
  std::string random(bytes, '\0');
  Fill(random.data(), bytes);
  return absl::BytesToHexString(random);
}

const wire::HelloToken& ProcessIncarnation() {
  static const wire::HelloToken incarnation = RandomToken();
  return incarnation;
}

}  // namespace verbena::session
