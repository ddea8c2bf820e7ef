// The services of examples/05_kv_cache in one process, with pages in host memory.
#include "examples/05_kv_cache/decode_service.h"
#include "examples/05_kv_cache/prefill_service.h"
#include "tests/catch.h"
#include "tests/transports.h"
#include "verbena/verbena.h"

namespace verbena::examples {
namespace {

constexpr uint32_t kLayers = 5, kPages = 12, kBlockBytes = 8192, kBlocks = 7;

struct HandOver {
  explicit HandOver(const std::string& transport, bool flaw = false) {
    PrefillOptions options;
    options.layer_microseconds = 100;
    options.flaw = flaw;
    prefill = std::make_unique<PrefillService>(place, *prefill_pages, options);
    prefill_server =
        *Server::Start(ServerOptions().set_listen("localhost:0").add_service(*prefill));
    channel = Channel::Create(prefill_server->address(),
                              ChannelOptions().set_require_transport(transport));
    decode = std::make_unique<DecodeService>(place, *decode_pages, channel);
    decode_server = *Server::Start(ServerOptions().set_listen("localhost:0").add_service(*decode));
  }
  absl::StatusOr<kv::Generated> Generate(uint32_t seed, uint32_t blocks) {
    kv::Prompt prompt;
    prompt.set_seed(seed);
    prompt.set_blocks(blocks);
    const kv::Decode::Stub stub(Channel::Create(decode_server->address()));
    VERBENA_ASSIGN_OR_RETURN(kv::Generated generated, stub.Generate(prompt).Get());
    CHECK(decode_pages->free() == kPages - blocks);
    kv::CheckRequest check;
    check.set_sequence(generated.sequence());
    VERBENA_RETURN_IF_ERROR(stub.Check(check).Get().status());
    CHECK(absl::IsNotFound(stub.Check(check).Get().status()));
    return generated;
  }
  const Place place;
  const std::unique_ptr<Pages> prefill_pages =
      *Pages::Create(Device::Host(), kLayers, kPages, kBlockBytes);
  const std::unique_ptr<Pages> decode_pages =
      *Pages::Create(Device::Host(), kLayers, kPages, kBlockBytes);
  std::unique_ptr<PrefillService> prefill;
  std::unique_ptr<DecodeService> decode;
  std::unique_ptr<Server> prefill_server, decode_server;
  std::shared_ptr<Channel> channel;
};

TEST_CASE("a prompt's blocks arrive in other pages, and both sides' pages are free again",
          "[example][kv]") {
  for (const std::string& transport : TestTransports()) {
    HandOver hand_over(transport);
    for (uint32_t seed = 1; seed < 4; ++seed) {
      INFO(transport << ", prompt " << seed);
      const auto generated = hand_over.Generate(seed, kBlocks);
      INFO(generated.status().ToString());
      REQUIRE(generated.ok());
      CHECK(generated->bytes() == uint64_t{kLayers} * kBlocks * kBlockBytes);
      CHECK(hand_over.prefill_pages->free() == kPages);
      CHECK(hand_over.decode_pages->free() == kPages);
    }
  }
}

TEST_CASE("one wrong byte fails the hand-over and is named", "[example][kv]") {
  HandOver hand_over("shm", true);
  const absl::Status status = hand_over.Generate(1, kBlocks).status();
  INFO(status.ToString());
  CHECK(absl::IsDataLoss(status));
  CHECK(std::string(status.message()).find("1 wrong bytes in block 6 of layer 4") == 0);
  CHECK(hand_over.decode_pages->free() == kPages);
}

TEST_CASE("a prompt that no pages are free for is refused, and takes none", "[example][kv]") {
  HandOver hand_over("shm");
  CHECK(absl::IsResourceExhausted(hand_over.Generate(1, kPages + 1).status()));
  CHECK(hand_over.prefill_pages->free() == kPages);
  CHECK(absl::IsInvalidArgument(hand_over.Generate(1, 0).status()));
}

TEST_CASE("blocks that were not read stay; a layer is given out once", "[example][kv]") {
  HandOver hand_over("shm");
  const kv::Prefill::Stub stub(hand_over.channel);
  kv::Prompt prompt;
  prompt.set_blocks(kBlocks);
  const auto begun = stub.Begin(prompt).Get();
  REQUIRE(begun.ok());
  kv::LayerRequest request;
  request.set_sequence(begun->sequence());
  {
    std::vector<Parcel<kv::LayerReply>> unread;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      request.set_layer(layer);
      auto reply = stub.Layer(request).Get();
      REQUIRE(reply.ok());
      unread.push_back(*std::move(reply));
      CHECK(absl::IsNotFound(stub.Layer(request).Get().status()));
    }
    CHECK(stub.CountPages(kv::CountRequest()).Get()->free() == kPages - kBlocks);
  }
  // The parcels are gone: what nobody will read is free.
  while (stub.CountPages(kv::CountRequest()).Get()->free() != kPages) {
  }
}

}  // namespace
}  // namespace verbena::examples
