// Parcels: tensors at every place of a message, mix-ups, lifetimes, destinations.
#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "nested.verbena_mock.h"
#include "tests/client/fixture.h"
#include "tests/transports.h"

namespace verbena {
namespace {

using absl::Status;
using absl::StatusOr;
using test::Batch;
using test::InferReply;
using test::InferRequest;
using test::Node;

Parcel<Batch> FullBatch() {
  Parcel<Batch> batch;
  for (int i = 0; i < 3; ++i) batch.Attach(*batch->add_items(), FloatTensor({float(i)}));
  batch.Attach((*batch->mutable_named())["k"], FloatTensor({10}));
  batch.Attach(*batch->mutable_imported()->mutable_input(), FloatTensor({20}));
  Node& node = (*batch->mutable_nodes())[7];
  batch.Attach(*node.mutable_value(), FloatTensor({30}));
  batch.Attach(*node.add_children()->add_children()->mutable_value(), FloatTensor({31}));
  batch.Attach(*node.mutable_edge()->mutable_to()->mutable_value(), FloatTensor({32}));
  batch.Attach(*batch->mutable_maybe(), FloatTensor({40}));
  batch.Attach(*batch->add_inners()->mutable_deep(), FloatTensor({50}));
  batch->mutable_plain()->set_text("plain");
  batch.Attach(*batch->mutable_buffer(), FloatTensor({60}).buffer());
  return batch;
}

struct Nested {
  test::Nested::Mock mock;
  testing::Loopback loop{mock};
  test::Nested::Stub stub{loop.channel()};
};

Task<Status> Forward(const Parcel<Batch>& request, Parcel<Batch>& reply) {
  for (const auto& item : request->items()) {
    VERBENA_CO_ASSIGN_OR_RETURN(Tensor tensor, co_await request.Fetch(item));
    reply.Attach(*reply->add_items(), tensor);
  }
  const Node& node = request->nodes().at(7);
  VERBENA_CO_ASSIGN_OR_RETURN(Tensor deep,
                              co_await request.Fetch(node.children(0).children(0).value()));
  reply.Attach((*reply->mutable_named())["deep"], deep);
  VERBENA_CO_ASSIGN_OR_RETURN(Tensor edge, co_await request.Fetch(node.edge().to().value()));
  reply.Attach((*reply->mutable_named())["edge"], edge);
  VERBENA_CO_ASSIGN_OR_RETURN(Tensor imported, co_await request.Fetch(request->imported().input()));
  reply.Attach((*reply->mutable_named())["imported"], imported);
  VERBENA_CO_ASSIGN_OR_RETURN(Tensor inner, co_await request.Fetch(request->inners(0).deep()));
  reply.Attach((*reply->mutable_named())["inner"], inner);
  VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await request.Fetch(request->buffer()));
  reply.Attach(*reply->mutable_buffer(), buffer);
  co_return absl::OkStatus();
}

TEST_CASE("tensors are found at every place of a message", "[client][parcel]") {
  Nested nested;
  nested.mock.on_Echo = [](ServerContext&, const Parcel<Batch>& request,
                           Parcel<Batch>& reply) -> Task<Status> {
    return Forward(request, reply);
  };
  Parcel<Batch> batch = FullBatch();
  *batch->add_items() = batch->items(2);  // the same tensor twice: travels once
  StatusOr<Parcel<Batch>> reply = nested.stub.Echo(batch).Get();
  INFO(reply.status().ToString());
  REQUIRE(reply.ok());
  const Batch& message = reply->message();
  REQUIRE(message.items_size() == 4);
  for (int i = 0; i < 4; ++i) {
    REQUIRE(At(*reply->Fetch(message.items(i)).Get(), 0) == float(i == 3 ? 2 : i));
  }
  const std::pair<const char*, float> expected[] = {
      {"deep", 31}, {"edge", 32}, {"imported", 20}, {"inner", 50}};
  for (const auto& [key, value] : expected) {
    REQUIRE(At(*reply->Fetch(message.named().at(key)).Get(), 0) == value);
  }
  StatusOr<Buffer> buffer = reply->Fetch(message.buffer()).Get();
  REQUIRE(buffer.ok());
  float f;
  std::memcpy(&f, buffer->data(), sizeof f);
  REQUIRE(f == 60);
}

TEST_CASE("every mix-up of descriptors is an error that names the field", "[client][parcel]") {
  Nested nested;
  nested.mock.on_Echo = [](ServerContext&, const Parcel<Batch>& request,
                           Parcel<Batch>& reply) -> Task<Status> {
    *reply->mutable_items() = request->items();
    return absl::OkStatus();
  };
  Parcel<Batch> batch = FullBatch();
  Status status = nested.stub.Echo(batch).Get().status();
  REQUIRE_CODE(status, kInvalidArgument);
  REQUIRE(status.message().find("test.Batch.items") != absl::string_view::npos);

  Parcel<Batch> empty;
  empty->mutable_imported()->mutable_input();
  status = nested.stub.Echo(empty).Get().status();
  REQUIRE_CODE(status, kInvalidArgument);
  REQUIRE(status.message().find("test.InferRequest.input is set but has no tensor") !=
          absl::string_view::npos);

  Parcel<Batch> other;
  other.Attach(*other->add_items(), FloatTensor({99}));
  batch->mutable_items(1)->Swap(other->mutable_items(0));
  REQUIRE_CODE(nested.stub.Echo(batch).Get().status(), kInvalidArgument);
  REQUIRE_CODE(other.Fetch(other->items(0)).Get().status(), kInvalidArgument);
}

TEST_CASE("attaching again replaces; copies of the message still mean its parcel",
          "[client][parcel]") {
  Parcel<Batch> batch;
  batch.Attach(*batch->add_items(), FloatTensor({1}));
  batch.Attach(*batch->mutable_items(0), FloatTensor({2}));
  REQUIRE(At(*batch.Fetch(batch->items(0)).Get(), 0) == 2);
  const Batch copy = *batch;
  REQUIRE(At(*batch.Fetch(copy.items(0)).Get(), 0) == 2);
  batch->Clear();
  batch.Attach(*batch->add_items(), FloatTensor({3}));
  Parcel<Batch> moved = std::move(batch);
  REQUIRE(At(*moved.Fetch(moved->items(0)).Get(), 0) == 3);
  REQUIRE_CODE(batch.Fetch(moved->items(0)).Get().status(), kInvalidArgument);
  Parcel<InferRequest> blank;
  REQUIRE_CODE(blank.Fetch(blank->input()).Get().status(), kInvalidArgument);
}

TEST_CASE("descriptors are found among the payloads whatever their numbers are",
          "[client][parcel][hostile]") {
  constexpr int kPayloads = 4095, kCopies = 1'000'000;
  Nested nested;
  nested.mock.on_Echo = [](ServerContext&, const Parcel<Batch>& request,
                           Parcel<Batch>& reply) -> Task<Status> {
    reply->set_text(absl::StrCat(request->items_size()));
    return absl::OkStatus();
  };
  Parcel<Batch> parcel;
  for (int i = 0; i < kPayloads; ++i) parcel.Attach(*parcel->add_items(), FloatTensor({1}));
  // A peer may name the last of them as often as a message has room for.
  const verbena::v1::Tensor last = parcel->items(kPayloads - 1);
  for (int i = 0; i < kCopies; ++i) *parcel->add_items() = last;
  const auto options = CallOptions().set_timeout(absl::Seconds(5) * kSlowdown);
  const absl::StatusOr<Parcel<Batch>> reply = nested.stub.Echo(std::move(parcel), options).Get();
  INFO(reply.status());
  REQUIRE(reply.ok());
  CHECK((*reply)->text() == absl::StrCat(kPayloads + kCopies));
}

TEST_CASE("a handler is tested without a server", "[client][parcel]") {
  struct Doubler final : test::Inference::Service {
    Task<Status> Infer(ServerContext&, const Parcel<InferRequest>& request,
                       Parcel<InferReply>& reply) override {
      VERBENA_CO_ASSIGN_OR_RETURN(Tensor input, co_await request.Fetch(request->input()));
      reply.Attach(*reply->mutable_output(), TwiceOf(input));
      co_return absl::OkStatus();
    }
  } doubler;
  ServerContext context;
  Parcel<InferRequest> request = InferParcel(4);
  Parcel<InferReply> reply;
  REQUIRE(Run(doubler.Infer(context, request, reply)).ok());
  REQUIRE(At(*reply.Fetch(reply->output()).Get(), 0) == 8);
}

TEST_CASE("the client's memory is its own again when Get has returned OK", "[client][lifetime]") {
  Inference inference;
  std::atomic<bool> released{false};
  auto values = std::make_unique<float[]>(2);
  values[0] = 3;
  values[1] = 4;
  std::optional<Call<Parcel<InferReply>>> call;
  {
    Parcel<InferRequest> parcel;
    Buffer mine = Buffer::Wrap(values.get(), 8, [&] { released = true; });
    parcel.Attach(*parcel->mutable_input(), *Tensor::Wrap(std::move(mine), kFloat32, {2}));
    call.emplace(inference.stub.Infer(parcel));
  }
  REQUIRE(!released);
  StatusOr<Parcel<InferReply>> reply = call->Get();
  REQUIRE(reply.ok());
  REQUIRE(released);
  REQUIRE(At(*reply->Fetch(reply->message().output()).Get(), 1) == 8);
}

TEST_CASE("a fetched tensor outlives parcel, call, channel and server", "[client][lifetime]") {
  Tensor kept;
  {
    Inference inference;
    auto reply = inference.stub.Infer(InferParcel(5)).Get();
    REQUIRE(reply.ok());
    kept = *reply->Fetch(reply->message().output()).Get();
  }
  REQUIRE(At(kept, 0) == 10);
}

TEST_CASE("a released parcel cannot be fetched from", "[client][parcel]") {
  Inference inference;
  auto reply = *inference.stub.Infer(InferParcel()).Get();
  reply.Release();
  REQUIRE_CODE(reply.Fetch(reply->output()).Get().status(), kFailedPrecondition);
}

TEST_CASE("destinations that do not fit are refused", "[client][parcel]") {
  Inference inference;
  auto reply = *inference.stub.Infer(InferParcel()).Get();
  const absl::Status two =
      reply.Fetch(reply->output(), Placement::Into(FloatTensor({1}), FloatTensor({2})))
          .Get()
          .status();
  REQUIRE_CODE(two, kInvalidArgument);
  CHECK(two.message() == "2 destinations for the fetch of one tensor");
  REQUIRE_CODE(reply.Fetch(reply->output(), Placement::Into(FloatTensor({1, 2}))).Get().status(),
               kInvalidArgument);
  static const float constant[4] = {};
  Tensor read_only = *Tensor::Wrap(Buffer::WrapReadOnly(constant, 16, [] {}), kFloat32, {4});
  REQUIRE_CODE(reply.Fetch(reply->output(), Placement::Into(read_only)).Get().status(),
               kInvalidArgument);
  REQUIRE_CODE(reply.Fetch(reply->output(), TensorSlice(2, 9)).Get().status(), kOutOfRange);
}

TEST_CASE("what was received and not fetched cannot be sent on", "[client][parcel]") {
  Inference inference;
  auto reply = *inference.stub.Infer(InferParcel()).Get();
  Parcel<InferRequest> next;
  *next->mutable_input() = reply->output();
  REQUIRE_CODE(inference.stub.Infer(next).Get().status(), kInvalidArgument);
  next.Attach(*next->mutable_input(), *reply.Fetch(reply->output()).Get());
  REQUIRE(inference.stub.Infer(next).Get().ok());
}

TEST_CASE("FetchAll brings everything; later fetches share it", "[client][parcel]") {
  Inference inference;
  auto reply = *inference.stub.Infer(InferParcel()).Get();
  REQUIRE(reply.FetchAll().Get().ok());
  auto a = reply.Fetch(reply->output()).Get();
  auto b = reply.Fetch(reply->output()).Get();
  REQUIRE((a.ok() && b.ok()));
  REQUIRE(a->data() == b->data());
  REQUIRE(At(*a, 3) == 8);
  Parcel<Batch> empty;
  REQUIRE(empty.FetchAll().Get().ok());
}

TEST_CASE("a lent destination holds the reply's tensor when the call ends", "[client][parcel]") {
  Inference inference;
  Tensor mine = FloatTensor({0, 0, 0, 0});
  auto reply =
      inference.stub.Infer(InferParcel(), CallOptions().set_reply_placement(Placement::Into(mine)))
          .Get();
  REQUIRE(reply.ok());
  REQUIRE(At(mine, 1) == 4);
  auto tensor = reply->Fetch(reply->message().output()).Get();
  REQUIRE(tensor->data() == mine.data());
  REQUIRE_CODE(inference.stub
                   .Infer(InferParcel(),
                          CallOptions().set_reply_placement(Placement::Into(FloatTensor({1}))))
                   .Get()
                   .status(),
               kInvalidArgument);
}

TEST_CASE("strided tensors arrive packed, slices of columns too", "[client][parcel]") {
  Inference inference;
  inference.mock.on_Infer = [](ServerContext&, const Parcel<InferRequest>& request,
                               Parcel<InferReply>& reply) -> Task<Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Tensor input, co_await request.Fetch(request->input()));
    reply.Attach(*reply->mutable_output(), input);
    co_return absl::OkStatus();
  };
  // A matrix of 3 x 4, sent transposed and with its rows in reverse.
  std::vector<float> values(12);
  for (int i = 0; i < 12; ++i) values[i] = float(i);
  Tensor matrix = *Tensor::Copy<float>(values, {3, 4});
  for (const auto& [shape, strides, offset, probe] :
       {std::tuple(Shape(4, 3), Shape(1, 4), 0, 4.f),
        std::tuple(Shape(3, 4), Shape(-4, 1), 32, 9.f)}) {
    Parcel<InferRequest> request;
    request.Attach(*request->mutable_input(),
                   *Tensor::Wrap(matrix.buffer(), kFloat32, shape, strides, offset));
    auto reply = inference.stub.Infer(request).Get();
    INFO(reply.status().ToString());
    REQUIRE(reply.ok());
    Tensor whole = *reply->Fetch(reply->message().output()).Get();
    REQUIRE(whole.contiguous());
    REQUIRE(At(whole, 1) == probe);
    auto column = reply->Fetch(reply->message().output(), TensorSlice().NextAll().Next(1, 2)).Get();
    REQUIRE(column.ok());
    REQUIRE(column->elements() == shape[0]);
    REQUIRE(At(*column, 0) == probe);
  }
}

// The most memory that this process has had since it was asked last.
size_t PeakBytes() {
  std::ifstream status("/proc/self/status");
  size_t kib = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) kib = std::stoul(line.substr(6));
  }
  std::ofstream("/proc/self/clear_refs") << "5";
  return kib << 10;
}

TEST_CASE("a tensor of many elements that are the same few bytes takes its own memory and no more",
          "[client][parcel][hostile]") {
  constexpr int64_t kElements = 1 << 24;
  InferenceMock service;
  std::optional<absl::StatusOr<Tensor>> got;
  size_t grown = 0;
  service.mock.on_Infer = [&](ServerContext&, const Parcel<test::InferRequest>& request,
                              Parcel<test::InferReply>&) -> Task<absl::Status> {
    PeakBytes();
    const size_t before = PeakBytes();
    got = co_await request.Fetch(request->input());
    const size_t peak = PeakBytes();
    grown = peak - std::min(before, peak);  // what others have given back may be more
    co_return absl::OkStatus();
  };
  testing::Loopback loop(service.mock);
  test::Inference::Stub stub(loop.channel());
  Buffer seven = *Buffer::Allocate(1);
  *seven.mutable_data() = std::byte{7};
  Parcel<test::InferRequest> parcel;
  parcel.Attach(*parcel->mutable_input(), *Tensor::Wrap(seven, kUInt8, Shape(kElements), Shape(0)));
  REQUIRE_CODE(stub.Infer(parcel).Get().status(), kOk);
  REQUIRE(got.has_value());
  REQUIRE_CODE(got->status(), kOk);
  const absl::Span<const uint8_t> values = *(*got)->Values<uint8_t>();
  CHECK(std::all_of(values.begin(), values.end(), [](uint8_t value) { return value == 7; }));
  INFO(grown << " bytes for " << kElements);
  CHECK(grown < 4 * kElements);
}

TEST_CASE("tensors without elements travel", "[client][parcel]") {
  Inference inference;
  inference.mock.on_Infer = [](ServerContext&, const Parcel<InferRequest>& request,
                               Parcel<InferReply>& reply) -> Task<Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Tensor input, co_await request.Fetch(request->input()));
    reply.Attach(*reply->mutable_output(), input);
    co_return absl::OkStatus();
  };
  Parcel<InferRequest> request;
  request.Attach(*request->mutable_input(), *Tensor::Empty(kFloat32, {0, 5}));
  auto reply = inference.stub.Infer(request).Get();
  INFO(reply.status().ToString());
  REQUIRE(reply.ok());
  auto tensor = reply->Fetch(reply->message().output()).Get();
  REQUIRE(tensor.ok());
  REQUIRE(tensor->shape() == Shape(0, 5));
}

TEST_CASE("large tensors arrive intact, whole and in parts", "[client][parcel]") {
  Inference inference;
  inference.mock.on_Infer = [](ServerContext&, const Parcel<InferRequest>& request,
                               Parcel<InferReply>& reply) -> Task<Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Tensor input, co_await request.Fetch(request->input()));
    reply.Attach(*reply->mutable_output(), input);
    co_return absl::OkStatus();
  };
  for (const std::string& transport : TestTransports()) {
    auto channel = Channel::Create(inference.loop.server().address(),
                                   ChannelOptions().set_require_transport(transport));
    test::Inference::Stub stub(channel);
    const int64_t rows = 9001;
    Tensor large = *Tensor::Empty(kInt32, {rows, 1024});
    auto values = *large.MutableValues<int32_t>();
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i * 2654435761u);
    Parcel<InferRequest> request;
    request.Attach(*request->mutable_input(), large);
    auto reply = stub.Infer(request).Get();
    INFO(transport << " " << reply.status().ToString());
    REQUIRE(reply.ok());
    Tensor whole = *reply->Fetch(reply->message().output()).Get();
    REQUIRE(std::memcmp(whole.data(), large.data(), large.bytes()) == 0);
    Tensor part = *reply->Fetch(reply->message().output(), TensorSlice(5000, 5001)).Get();
    REQUIRE(std::memcmp(part.data(), large.data() + 5000 * 4096, 4096) == 0);
  }
}

TEST_CASE("parts of a tensor above 4 GiB are fetched from where they are",
          "[client][parcel][huge]") {
  // Address space without memory: a page exists once it is touched.
  static constexpr uint64_t kBytes = uint64_t{5} << 30;
  constexpr int64_t kRow = int64_t{1} << 30;
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto* const bytes = static_cast<uint8_t*>(memory);
  bytes[kBytes - 1] = 9;
  bytes[4 * uint64_t{kRow} - 1] = 7;
  Buffer whole = Buffer::Wrap(memory, kBytes, [memory] { munmap(memory, kBytes); });
  const Tensor large = *Tensor::Wrap(std::move(whole), kUInt8, {5, kRow});
  Inference inference;
  inference.mock.on_Infer = [&](ServerContext&, const Parcel<InferRequest>&,
                                Parcel<InferReply>& reply) -> Task<Status> {
    reply.Attach(*reply->mutable_output(), large);
    return absl::OkStatus();
  };
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    test::Inference::Stub stub(Channel::Create(inference.loop.server().address(),
                                               ChannelOptions().set_require_transport(transport)));
    auto reply = stub.Infer(InferParcel()).Get();
    REQUIRE_CODE(reply.status(), kOk);
    CHECK((*reply)->output().shape(0) == 5);
    for (const auto& [row, last] : {std::pair(3, 7), std::pair(4, 9)}) {
      const TensorSlice end = TensorSlice(row, row + 1).Next(kRow - 100, TensorSlice::kEnd);
      auto part = reply->Fetch((*reply)->output(), end).Get();
      REQUIRE_CODE(part.status(), kOk);
      REQUIRE(part->bytes() == 100);
      CHECK(part->data()[98] == std::byte{0});
      CHECK(part->data()[99] == std::byte(last));
    }
  }
}

TEST_CASE("large messages go by READ both ways", "[client][parcel]") {
  Greeter greeter;
  greeter.mock.on_SayHello = [](ServerContext&, const test::HelloRequest& request,
                                test::HelloReply& reply) -> Task<Status> {
    reply.set_text(request.name());
    return absl::OkStatus();
  };
  for (const std::string& transport : TestTransports()) {
    auto channel = Channel::Create(greeter.loop.server().address(),
                                   ChannelOptions().set_require_transport(transport));
    test::Greeter::Stub stub(channel);
    for (const size_t bytes : {500, 511, 513, 4000, 8150, 8191, 8192, 70000, 1 << 20, 5 << 20}) {
      std::string name(bytes, 'a');
      name[bytes / 2] = 'b';
      auto reply = stub.SayHello(RequestFor(name)).Get();
      INFO(transport << " " << bytes << " " << reply.status().ToString());
      REQUIRE(reply.ok());
      REQUIRE(reply->text() == name);
    }
  }
}

}  // namespace
}  // namespace verbena
