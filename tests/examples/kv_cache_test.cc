// The services of examples/05_kv_cache in one process, with pages in host memory.
#include "absl/time/clock.h"
#include "examples/05_kv_cache/decode_service.h"
#include "examples/05_kv_cache/prefill_service.h"
#include "rpc/memory/fake_device.h"
#include "tests/catch.h"
#include "tests/transports.h"
#include "verbena/verbena.h"

namespace verbena::examples {
namespace {

constexpr uint32_t kLayers = 5, kPages = 12, kBlockBytes = 8192, kBlocks = 7;

struct HandOver {
  explicit HandOver(const std::string& transport, PrefillOptions options = {}) {
    options.layer_microseconds = 100;
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
  HandOver hand_over("shm", {.flaw = true});
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

TEST_CASE("a prompt whose client is gone gives its pages to a later one", "[example][kv]") {
  HandOver hand_over("shm", {.idle_max = absl::ZeroDuration()});
  const kv::Prefill::Stub stub(hand_over.channel);
  kv::Prompt prompt;
  prompt.set_blocks(kPages);
  const auto abandoned = stub.Begin(prompt).Get();
  REQUIRE(abandoned.ok());
  const auto begun = stub.Begin(prompt).Get();
  INFO(begun.status().ToString());
  REQUIRE(begun.ok());
  kv::LayerRequest request;
  request.set_sequence(abandoned->sequence());
  CHECK(absl::IsNotFound(stub.Layer(request).Get().status()));
  request.set_sequence(begun->sequence());
  CHECK(stub.Layer(request).Get().ok());
}

// Has one layer, and fails at the next.
class HalfPrefill final : public kv::Prefill::Service {
 public:
  absl::Status Begin(ServerContext&, const kv::Prompt&, kv::Begun& reply) override {
    reply.set_layers(kLayers);
    reply.set_block_bytes(kBlockBytes);
    return absl::OkStatus();
  }
  absl::Status Layer(ServerContext&, const kv::LayerRequest& request,
                     Parcel<kv::LayerReply>& reply) override {
    if (request.layer() > 0) return absl::InternalError("no more");
    VERBENA_ASSIGN_OR_RETURN(Tensor blocks, Tensor::Empty(kUInt8, Shape(kBlocks, kBlockBytes)));
    reply.Attach(*reply->mutable_blocks(), std::move(blocks));
    return absl::OkStatus();
  }
  absl::Status CountPages(ServerContext&, const kv::CountRequest&, kv::CountReply&) override {
    return absl::OkStatus();
  }
};

TEST_CASE("pages that a fetch still writes are not free when another layer fails",
          "[example][kv]") {
  memory::FakeDevice& fake = memory::FakeDevice::Install(50);
  const Place place;
  const auto pages = *Pages::Create(fake.where(), kLayers, kPages, kBlockBytes);
  HalfPrefill prefill;
  const auto prefill_server =
      *Server::Start(ServerOptions().set_listen("localhost:0").add_service(prefill));
  DecodeService decode(
      place, *pages,
      Channel::Create(prefill_server->address(), ChannelOptions().set_require_transport("shm")));
  const auto server = *Server::Start(ServerOptions().set_listen("localhost:0").add_service(decode));
  const kv::Decode::Stub stub(Channel::Create(server->address()));
  kv::Prompt prompt;
  prompt.set_blocks(kBlocks);
  fake.LetCopies(0);
  Call<kv::Generated> call = stub.Generate(prompt);
  while (fake.waiting() == 0 && !call.done()) absl::SleepFor(absl::Milliseconds(1));
  // Long enough for the failure to have come. Were it not, there would be nothing to see.
  for (int i = 0; i < 100 && !call.done(); ++i) absl::SleepFor(absl::Milliseconds(1));
  CHECK_FALSE(call.done());
  CHECK(pages->free() == kPages - kBlocks);
  fake.LetCopies(-1);
  CHECK(absl::IsInternal(call.Get().status()));
  CHECK(pages->free() == kPages);
}

}  // namespace
}  // namespace verbena::examples
