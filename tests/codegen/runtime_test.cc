// The golden services at work: what the generated tables say, what the visitors find, and each kind
// of class in a real call.
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "golden/greeter.verbena_mock.h"
#include "golden/hostile/in_std.verbena_mock.h"
#include "golden/hostile/in_verbena.verbena_mock.h"
#include "golden/hostile/methods.verbena_mock.h"
#include "golden/hostile/nested_verbena.verbena_mock.h"
#include "golden/hostile/no_package.verbena_mock.h"
#include "golden/inference.verbena_mock.h"
#include "golden/lite.verbena_mock.h"
#include "golden/nested.verbena_mock.h"
#include "golden/proto2.verbena_mock.h"
#include "golden/route_guide.verbena_mock.h"
#include "tests/catch.h"

namespace verbena {
namespace {
using absl::StatusCode;
using testing::Loopback;

// Puts a number into each descriptor's name.
struct Seen final : DescriptorVisitor {
  void Visit(const v1::Tensor& tensor, const char* field) override {
    found.emplace(field, tensor.ticket());
  }
  void Visit(const v1::Buffer& buffer, const char* field) override {
    found.emplace(field, buffer.ticket());
  }
  std::multimap<std::string, uint64_t> found;
};

template <class M>
std::multimap<std::string, uint64_t> VisitAll(const M& message) {
  Seen seen;
  TensorFields<M>::Visit(message, seen);
  return std::move(seen.found);
}

Tensor Floats(std::vector<float> values) {
  auto tensor = Tensor::Empty(kFloat32, Shape(static_cast<int64_t>(values.size())));
  REQUIRE(tensor.ok());
  Buffer memory = tensor->buffer();
  std::memcpy(memory.mutable_data(), values.data(), values.size() * sizeof(float));
  return *tensor;
}

std::vector<float> ValuesOf(const Tensor& tensor) {
  auto values = tensor.Values<float>();
  REQUIRE(values.ok());
  return std::vector<float>(values->begin(), values->end());
}

TEST_CASE("the visitor finds each tensor once, wherever it is", "[codegen][visitor]") {
  golden::Batch batch;
  CHECK(VisitAll(batch).empty());

  batch.add_items()->set_ticket(1);
  batch.add_items()->set_ticket(2);
  (*batch.mutable_named())["a"].set_ticket(3);
  (*batch.mutable_named())["b"].set_ticket(4);
  batch.mutable_tree()->mutable_value()->set_ticket(5);  // of the oneof
  batch.mutable_tree()->add_children()->add_children()->mutable_value()->set_ticket(6);
  // Mutual recursion.
  batch.mutable_tree()
      ->mutable_edge()
      ->mutable_to()
      ->mutable_edge()
      ->mutable_to()
      ->mutable_value()
      ->set_ticket(7);
  batch.mutable_imported()->mutable_input()->set_ticket(8);
  (*batch.mutable_nodes())[1].mutable_value()->set_ticket(9);
  batch.mutable_maybe()->set_ticket(10);
  batch.add_inners()->mutable_deep()->set_ticket(11);
  batch.mutable_inners(0)->add_innermost()->mutable_deepest()->set_ticket(12);
  const std::multimap<std::string, uint64_t> expected = {
      {"golden.Batch.items", 1},        {"golden.Batch.items", 2},
      {"golden.Batch.named", 3},        {"golden.Batch.named", 4},
      {"golden.Node.value", 5},         {"golden.Node.value", 6},
      {"golden.Node.value", 7},         {"golden.Node.value", 9},
      {"golden.InferRequest.input", 8}, {"golden.Batch.maybe", 10},
      {"golden.Batch.Inner.deep", 11},  {"golden.Batch.Inner.Innermost.deepest", 12}};
  const auto found = VisitAll(batch);
  std::multimap<uint64_t, std::string> by_ticket, expected_by_ticket;
  for (const auto& [field, ticket] : found) by_ticket.emplace(ticket, field);
  for (const auto& [field, ticket] : expected) expected_by_ticket.emplace(ticket, field);
  CHECK(by_ticket == expected_by_ticket);

  // Another member of the oneof takes the place of the tree.
  batch.mutable_buffer()->set_ticket(20);
  const auto other = VisitAll(batch);
  CHECK(other.count("golden.Batch.buffer") == 1);
  CHECK(other.count("golden.Node.value") == 1);
}

TEST_CASE("the visitor knows groups, required fields and fields with keywords for names",
          "[codegen][visitor]") {
  golden::two::Old old;
  old.mutable_must()->set_ticket(1);
  old.mutable_part()->mutable_data()->set_ticket(2);
  old.mutable_part()->mutable_old()->mutable_must()->set_ticket(3);
  old.add_row()->mutable_bytes()->set_ticket(4);
  CHECK(VisitAll(old).size() == 4);

  hostile::methods::Outer_union message;
  message.mutable_operator_()->mutable_class_()->set_ticket(1);
  message.add_new_()->mutable_class_()->set_ticket(2);
  (*message.mutable_namespace_())["x"].mutable_class_()->set_ticket(3);
  message.mutable_typename_()->set_ticket(4);
  CHECK(VisitAll(message).size() == 4);
}

TEST_CASE("the names table has each method's path", "[codegen]") {
  CHECK(std::string(golden::Greeter::service_full_name()) == "golden.Greeter");
  CHECK(std::string(golden::Greeter::Paths::SayHello) == "/golden.Greeter/SayHello");
  // What C++ renames keeps its name on the wire.
  using hostile::methods::class_;
  CHECK(std::string(class_::service_full_name()) == "hostile.methods.class");
  CHECK(std::string(class_::Paths::Stub_) == "/hostile.methods.class/Stub");
  CHECK(std::string(class_::Paths::delete__) == "/hostile.methods.class/delete");
  CHECK(std::string(class_::Paths::delete_) == "/hostile.methods.class/delete_");
  CHECK(std::string(NoPackage::Paths::Call) == "/NoPackage/Call");
}

TEST_CASE("the method table says what the .proto says", "[codegen]") {
  golden::Greeter::Mock greeter;
  const auto& methods = greeter.verbena_info().methods;
  REQUIRE(methods.size() == 4);
  CHECK(std::string(methods[0].path) == golden::Greeter::Paths::SayHello);
  CHECK(methods[0].handle != nullptr);
  CHECK(methods[0].handle_blocking == nullptr);
  CHECK_FALSE(methods[0].idempotent);
  CHECK(methods[0].request_bytes_max == 0);
  // Marked blocking, with limits.
  CHECK(methods[1].handle == nullptr);
  CHECK(methods[1].handle_blocking != nullptr);
  CHECK(methods[1].request_bytes_max == 4096);
  CHECK(methods[1].reply_bytes_max == UINT64_MAX);
  CHECK(methods[2].idempotent);
  CHECK(methods[3].idempotent);

  golden::Inference::Mock inference;
  const auto& kinds = inference.verbena_info().methods;
  REQUIRE(kinds.size() == 5);
  CHECK(kinds[0].kind == MethodKind::kUnary);
  CHECK(kinds[1].kind == MethodKind::kServerStreaming);
  CHECK(kinds[2].kind == MethodKind::kBidi);
  CHECK(kinds[3].kind == MethodKind::kClientStreaming);
  // A stream has no single message; the rest has.
  CHECK((kinds[1].request != nullptr && kinds[1].reply == nullptr));
  CHECK((kinds[2].request == nullptr && kinds[2].reply == nullptr));
  CHECK((kinds[3].request == nullptr && kinds[3].reply != nullptr));

  golden::routeguide::Nothing::Mock nothing;
  CHECK(nothing.verbena_info().methods.empty());
}

TEST_CASE("a mock's bodies answer calls, what has none is unimplemented", "[codegen]") {
  golden::Greeter::Mock mock;
  mock.on_SayHello = [](ServerContext&, const golden::HelloRequest& request,
                        golden::HelloReply& reply) -> Task<absl::Status> {
    reply.set_text("Hello, " + request.name());
    return absl::OkStatus();
  };
  mock.on_SlowHello = [](ServerContext&, const golden::HelloRequest&, golden::HelloReply&) {
    return absl::NotFoundError("nobody");
  };
  Loopback loopback(mock);
  golden::Greeter::Stub stub(loopback.channel());
  golden::HelloRequest request;
  request.set_name("world");
  const auto reply = stub.SayHello(request).Get();
  REQUIRE(reply.ok());
  CHECK(reply->text() == "Hello, world");
  CHECK(stub.SlowHello(request).Get().status().code() == StatusCode::kNotFound);
  CHECK(stub.Peek(request).Get().status().code() == StatusCode::kUnimplemented);
}

TEST_CASE("a tensor goes there and back", "[codegen]") {
  golden::Inference::Mock mock;
  mock.on_Infer = [](ServerContext&, const Parcel<golden::InferRequest>& request,
                     Parcel<golden::InferReply>& reply) -> Task<absl::Status> {
    auto fetch = request.Fetch(request->input());
    auto input = co_await fetch;
    if (!input.ok()) co_return input.status();
    reply.Attach(*reply->mutable_output(), *input);
    co_return absl::OkStatus();
  };
  Loopback loopback(mock);
  golden::Inference::Stub stub(loopback.channel());
  Parcel<golden::InferRequest> request;
  request.Attach(*request->mutable_input(), Floats({1, 2, 3}));
  const auto reply = stub.Infer(request).Get();
  REQUIRE(reply.ok());
  const auto output = reply->Fetch((*reply)->output()).Get();
  REQUIRE(output.ok());
  CHECK(ValuesOf(*output) == std::vector<float>{1, 2, 3});
}

TEST_CASE("tensors at every place arrive in their own places", "[codegen]") {
  golden::Nested::Mock mock;
  mock.on_Echo = [](ServerContext&, const Parcel<golden::Batch>& request,
                    Parcel<golden::Batch>& reply) -> Task<absl::Status> {
    auto first = request.Fetch(request->items(1));
    auto second = request.Fetch(request->nodes().at(7).children(0).value());
    auto item = co_await first;
    if (!item.ok()) co_return item.status();
    auto node = co_await second;
    if (!node.ok()) co_return node.status();
    reply.Attach((*reply->mutable_named())["node"], *node);
    reply.Attach(*reply->mutable_imported()->mutable_input(), *item);
    co_return absl::OkStatus();
  };
  Loopback loopback(mock);
  golden::Nested::Stub stub(loopback.channel());
  Parcel<golden::Batch> request;
  request.Attach(*request->add_items(), Floats({1}));
  request.Attach(*request->add_items(), Floats({2, 2}));
  request.Attach(*(*request->mutable_nodes())[7].add_children()->mutable_value(), Floats({3}));
  const auto reply = stub.Echo(request).Get();
  REQUIRE(reply.ok());
  const auto node = reply->Fetch((*reply)->named().at("node")).Get();
  const auto item = reply->Fetch((*reply)->imported().input()).Get();
  REQUIRE(node.ok());
  REQUIRE(item.ok());
  CHECK(ValuesOf(*node) == std::vector<float>{3});
  CHECK(ValuesOf(*item) == std::vector<float>{2, 2});
}

TEST_CASE("services whose names are hostile work all the same", "[codegen][hostile]") {
  using hostile::methods::class_;
  using hostile::methods::Outer_class;
  class_::Mock mock;
  mock.on_delete__ = [](ServerContext&, const Outer_class&,
                        Outer_class& reply) -> Task<absl::Status> {
    reply.set_text("delete");
    return absl::OkStatus();
  };
  mock.on_delete___ = [](ServerContext&, const Outer_class&,
                         Outer_class& reply) -> Task<absl::Status> {
    reply.set_text("delete_");
    return absl::OkStatus();
  };
  mock.on_co_await_ = [](ServerContext&, const Outer_class&, Outer_class& reply) {
    reply.set_text("co_await");
    return absl::OkStatus();
  };
  Loopback loopback(mock);
  class_::Stub stub(loopback.channel());
  CHECK(stub.delete__(Outer_class()).Get()->text() == "delete");
  CHECK(stub.delete_(Outer_class()).Get()->text() == "delete_");
  CHECK(stub.co_await_(Outer_class()).Get()->text() == "co_await");
  CHECK(stub.verbena_info_(Outer_class()).Get().status().code() == StatusCode::kUnimplemented);
}

TEST_CASE("messages named like the library's classes travel", "[codegen][hostile]") {
  x::Channel::Mock mock;
  mock.on_Call = [](ServerContext&, const Parcel<x::Call>& request,
                    Parcel<x::Task>& reply) -> Task<absl::Status> {
    auto fetch = request.Fetch(request->tensor());
    auto tensor = co_await fetch;
    if (!tensor.ok()) co_return tensor.status();
    reply.Attach(*reply->mutable_call()->mutable_tensor(), *tensor);
    co_return absl::OkStatus();
  };
  Loopback loopback(mock);
  x::Channel::Stub stub(loopback.channel());
  Parcel<x::Call> request;
  request.Attach(*request->mutable_tensor(), Floats({5}));
  const auto reply = stub.Call(request).Get();
  REQUIRE(reply.ok());
  CHECK((*reply)->call().has_tensor());

  std::shared_thing::Mock in_std;
  Loopback std_loopback(in_std);
  Parcel<std::string_of_tensors> empty;
  CHECK(std::shared_thing::Stub(std_loopback.channel()).move(empty).Get().status().code() ==
        StatusCode::kUnimplemented);
}

TEST_CASE("a lite file's messages carry tensors too", "[codegen]") {
  golden::lite::Lite::Mock mock;
  mock.on_Carry = [](ServerContext&, const Parcel<golden::lite::Small>& request,
                     golden::lite::Smaller& reply) -> Task<absl::Status> {
    reply.set_text(request->text());
    return absl::OkStatus();
  };
  Loopback loopback(mock);
  golden::lite::Lite::Stub stub(loopback.channel());
  Parcel<golden::lite::Small> request;
  request->set_text("lite");
  request.Attach(*request->mutable_tensor(), Floats({1}));
  const auto reply = stub.Carry(request).Get();
  REQUIRE(reply.ok());
  CHECK(reply->text() == "lite");
}

}  // namespace
}  // namespace verbena
