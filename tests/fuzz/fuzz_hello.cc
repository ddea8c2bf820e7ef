// The handshake's messages, as either side gets them from a peer that it does not know yet. The
// first byte picks the decoder.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "rpc/wire/hello.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace verbena::wire;
  if (size == 0) return 0;
  const absl::string_view input(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (data[0] % 4) {
    case 0: {
      const auto header = DecodeHelloHeader(input);
      if (header.ok() && header->body_bytes > kHelloBodyBytesMax) std::abort();
      break;
    }
    case 1: {
      const auto hello = DecodeHello(input);
      if (!hello.ok()) break;
      // What was accepted can be said again and is accepted again.
      const std::string again = EncodeHello(HelloType::kHelloReply, *hello);
      if (again.size() > kHelloHeaderBytes + kHelloBodyBytesMax)
        break;  // escaping makes text longer
      if (!DecodeHello(absl::string_view(again).substr(kHelloHeaderBytes)).ok()) std::abort();
      break;
    }
    case 2: {
      const auto open = DecodeOpen(input);
      if (open.ok() && open->descriptors > kHelloDescriptorsMax) std::abort();
      break;
    }
    default: {
      absl::Status refusal;
      (void)DecodeRefuse(input, refusal);
      if (refusal.ok()) std::abort();
      break;
    }
  }
  return 0;
}
