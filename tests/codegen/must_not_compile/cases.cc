// What must not compile. Each case is compiled alone, with warnings as errors; it must fail, with a
// text that matches what stands after `expect:`. Without any case the file must compile. run.sh
// reads the lines that begin with `#elif defined`.
#include "tests/codegen/must_not_compile/prelude.h"

namespace verbena {
namespace {

using golden::Greeter;
using golden::HelloReply;
using golden::HelloRequest;
using golden::Inference;
using golden::InferReply;
using golden::InferRequest;
using golden::Prompt;
using golden::Token;

#if defined(NOTHING)
#elif defined(PLAIN_MESSAGE_FOR_A_PARCEL)           // expect: golden::InferRequest.* to .*Parcel<
[[maybe_unused]] void F(Inference::Stub& stub, InferRequest& request) {
  auto call = stub.Infer(request);
}
#elif defined(PARCEL_OF_A_MESSAGE_WITHOUT_TENSORS)  // expect: carries no tensors
[[maybe_unused]] Parcel<HelloRequest> parcel;
#elif defined( \
    PARCEL_WITHOUT_THE_GENERATED_HEADER)        // expect: generated .*\.verbena\.h is not included
[[maybe_unused]] Parcel<v1::TensorSpec> parcel;
#elif defined(CALL_DROPPED)                     // expect: nodiscard|dropping a Call
[[maybe_unused]] void F(Greeter::Stub& stub, HelloRequest& request) { stub.SayHello(request); }
#elif defined(CALL_COPIED)                      // expect: deleted
[[maybe_unused]] void F(Greeter::Stub& stub, HelloRequest& request) {
  auto a = stub.SayHello(request);
  auto b = a;
}
#elif defined(READ_INTO_A_TEMPORARY)            // expect: deleted
[[maybe_unused]] Task<void> F(Inference::Stub stub) {
  auto stream = stub.Generate(Prompt());
  (void)co_await stream.Read(Token());
}
#elif defined(CALLBACK_WITH_ANOTHER_PARAMETER)  // expect: callback
[[maybe_unused]] void F(Greeter::Stub& stub, HelloRequest& request) {
  stub.SayHello(request).Then([](HelloReply) {});
}
#elif defined(HANDLER_WITH_PLAIN_MESSAGES)      // expect: override
struct Impl : Inference::Service {
  Task<absl::Status> Infer(ServerContext&, const InferRequest&, InferReply&) override {
    return absl::OkStatus();
  }
};
#elif defined(ATTACH_TO_WHAT_WAS_RECEIVED)      // expect: const
[[maybe_unused]] Task<void> F(const Parcel<InferRequest>& parcel, Tensor tensor) {
  parcel.Attach(*parcel->mutable_input(), tensor);
  co_return;
}
#elif defined(AWAIT_IN_AN_ORDINARY_FUNCTION)    // expect: co_await|coroutine
[[maybe_unused]] void F(Greeter::Stub& stub, HelloRequest& request) {
  auto reply = co_await stub.SayHello(request);
}
#elif defined(TASK_AWAITED_AS_AN_LVALUE)        // expect: deleted|operator co_await|await_ready
Task<int> G();
[[maybe_unused]] Task<int> F() {
  auto task = G();
  co_return co_await task;
}
#elif defined(TASK_DROPPED)                     // expect: nodiscard
Task<int> G();
[[maybe_unused]] void F() { G(); }
#elif defined(WRITE_DROPPED)                    // expect: nodiscard
[[maybe_unused]] Task<void> F(ServerWriter<Token> writer) {
  writer.Write(Token());
  co_return;
}
#elif defined(READ_DROPPED)                     // expect: nodiscard
[[maybe_unused]] Task<void> F(ServerReader<Token> reader) {
  Token token;
  reader.Read(token);
  co_return;
}
#elif defined(COROUTINE_FOR_A_BLOCKING_METHOD)  // expect: return type
struct Impl : Greeter::Service {
  Task<absl::Status> SlowHello(ServerContext&, const HelloRequest&, HelloReply&) override {
    co_return absl::OkStatus();
  }
};
#elif defined(AWAIT_IN_A_BLOCKING_METHOD)       // expect: coroutine
struct Impl : Greeter::Service {
  absl::Status SlowHello(ServerContext& context, const HelloRequest&, HelloReply&) override {
    (void)co_await context.Sleep(absl::Seconds(1));
    co_return absl::OkStatus();
  }
};
#elif defined(REQUEST_OF_ANOTHER_METHOD)        // expect: golden::HelloRequest
[[maybe_unused]] void F(Greeter::Stub& stub) {
  Prompt prompt;
  (void)stub.SayHello(prompt);
}
#elif defined(PARCEL_COPIED)                    // expect: deleted
[[maybe_unused]] void F(Parcel<InferRequest>& parcel) { auto copy = parcel; }
#elif defined(DESCRIPTOR_FOR_A_TENSOR)          // expect: v1::Tensor
[[maybe_unused]] void F(Parcel<InferRequest>& request, Parcel<InferReply>& reply) {
  reply.Attach(*reply->mutable_output(), request->input());
}
#elif defined(OPTIONS_AS_AN_AGGREGATE)          // expect: CallOptions|designated|initializer
[[maybe_unused]] void F(Greeter::Stub& stub, HelloRequest& request) {
  (void)stub.SayHello(request, {.timeout = absl::Seconds(1)}).Get();
}
#elif defined(RESULT_OF_GET_IGNORED)            // expect: nodiscard|unused
[[maybe_unused]] void F(Greeter::Stub& stub, HelloRequest& request) {
  stub.SayHello(request).Get();
}
#elif defined(STREAM_DROPPED)                   // expect: nodiscard
[[maybe_unused]] void F(Inference::Stub& stub) { stub.Generate(Prompt()); }
#elif defined(MOVE_ONLY_CALLBACK_AS_AN_LVALUE)  // expect: deleted|std::move
[[maybe_unused]] void F(Greeter::Stub& stub, HelloRequest& request) {
  auto callback = [p = std::make_unique<int>()](absl::StatusOr<HelloReply>) {};
  stub.SayHello(request).Then(callback);
}
#elif defined(RETURN_IN_A_COROUTINE)            // expect: co_return|coroutine
[[maybe_unused]] Task<absl::Status> F(ServerContext& context) {
  (void)co_await context.Sleep(absl::Seconds(1));
  return absl::OkStatus();
}
#elif defined(TIMEOUT_AS_AN_INT)                // expect: int.* to .*Duration
[[maybe_unused]] void F(Greeter::Stub& stub, HelloRequest& request) {
  (void)stub.SayHello(request, CallOptions().set_timeout(5)).Get();
}
#elif defined(FETCH_OF_THE_MESSAGE)             // expect: no matching (member )?function
[[maybe_unused]] Task<void> F(const Parcel<InferRequest>& parcel) {
  (void)co_await parcel.Fetch(*parcel);
}
#elif defined(BOOL_FROM_A_READ_NOT_AWAITED)     // expect: bool
[[maybe_unused]] void F(ServerReader<Token> reader) {
  Token token;
  if (reader.Read(token)) return;
}
#endif

}  // namespace
}  // namespace verbena
