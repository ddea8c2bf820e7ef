// ChannelStatus::counters: what a connection says that it did.
#include "tests/client/fixture.h"
#include "tests/transports.h"

namespace verbena {
namespace {

using test::InferReply;
using test::InferRequest;

Task<absl::Status> TwentyAtOnce(test::Greeter::Stub stub) {
  std::vector<Call<test::HelloReply>> calls;
  for (int i = 0; i < 20; ++i) calls.push_back(stub.SayHello(RequestFor("b")));
  for (auto& call : calls) {
    auto reply = co_await call;
    if (!reply.ok()) co_return reply.status();
  }
  co_return absl::OkStatus();
}

TEST_CASE("a connection counts its messages and what carried them", "[client][counters]") {
  Greeter greeter;
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    auto channel = Channel::Create(greeter.loop.server().address(),
                                   ChannelOptions().set_require_transport(transport));
    CHECK(channel->status().counters.frames_sent == 0);
    const test::Greeter::Stub stub(channel);
    for (int i = 0; i < 10; ++i) REQUIRE(stub.SayHello(RequestFor("a")).Get().ok());
    const ConnectionCounters one_by_one = channel->status().counters;
    CHECK(one_by_one.messages_sent == 10);
    CHECK(one_by_one.messages_received == 10);
    CHECK(one_by_one.frames_sent >= 10);
    CHECK(one_by_one.frames_received >= 10);

    // Calls that begin in one tick share frames, and over verbs a doorbell.
    const absl::Status together = Run(TwentyAtOnce(stub));
    REQUIRE(together.ok());
    const ConnectionCounters after = channel->status().counters;
    CHECK(after.messages_sent == 30);
    CHECK(after.frames_sent - one_by_one.frames_sent < 20);
    if (transport == "verbs") {
      CHECK(after.doorbells > 0);
      CHECK(after.doorbells <= after.frames_sent);
      CHECK(after.send_ticks <= after.doorbells);
    } else {
      CHECK(after.doorbells + after.send_ticks + after.work_reads == 0);
    }
  }
}

TEST_CASE("a connection counts READs, and over verbs what they and its leases took",
          "[client][counters]") {
  Inference inference;
  inference.mock.on_Infer = [](ServerContext&, const Parcel<InferRequest>& request,
                               Parcel<InferReply>& reply) -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Tensor input, co_await request.Fetch(request->input()));
    reply.Attach(*reply->mutable_output(), input);
    co_return absl::OkStatus();
  };
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    auto channel = Channel::Create(inference.loop.server().address(),
                                   ChannelOptions().set_require_transport(transport));
    const test::Inference::Stub stub(channel);
    const Tensor large = *Tensor::Empty(kUInt8, {3 << 20});
    Parcel<InferRequest> request;
    request.Attach(*request->mutable_input(), large);
    auto reply = stub.Infer(request).Get();
    REQUIRE(reply.ok());
    const ConnectionCounters before = channel->status().counters;
    REQUIRE(reply->Fetch(reply->message().output()).Get().ok());
    const ConnectionCounters after = channel->status().counters;
    CHECK(after.read_bytes - before.read_bytes == large.bytes());
    CHECK(after.reads > before.reads);
    const uint64_t leases = after.window_leases + after.registered_leases + after.lane_leases;
    if (transport == "verbs") {
      CHECK(after.work_reads - before.work_reads >= after.reads - before.reads);
      CHECK(after.read_doorbells <= after.work_reads);
      CHECK(leases > 0);
    } else {
      CHECK(leases + after.work_reads + after.read_doorbells == 0);
    }
  }
}

}  // namespace
}  // namespace verbena
