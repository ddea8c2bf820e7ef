#pragma once
// Two services in this process, behind real channels, and small helpers.
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "greeter.verbena_mock.h"
#include "inference.verbena_mock.h"
#include "rpc/base/slowdown.h"
#include "tests/catch.h"
#include "verbena/verbena.h"

namespace verbena {

#define REQUIRE_CODE(expression, code_)                    \
  REQUIRE(absl::StatusCodeToString((expression).code()) == \
          absl::StatusCodeToString(absl::StatusCode::code_))

// Longer than any small-string buffer, so that sanitizers see what happens to it.
inline const std::string& LongText() {
  static const std::string* const text = new std::string(64, 'x');
  return *text;
}

inline test::HelloRequest RequestFor(const std::string& name) {
  test::HelloRequest request;
  request.set_name(name);
  return request;
}

inline Tensor FloatTensor(std::vector<float> values) {
  return *Tensor::Copy<float>(values, Shape(static_cast<int64_t>(values.size())));
}
inline float At(const Tensor& tensor, size_t i) { return (*tensor.Values<float>())[i]; }
inline Tensor TwiceOf(const Tensor& in) {
  std::vector<float> values;
  const absl::Span<const float> from = *in.Values<float>();
  for (const float f : from) values.push_back(2 * f);
  return *Tensor::Copy<float>(values, in.shape());
}
inline Parcel<test::InferRequest> InferParcel(float first = 1) {
  Parcel<test::InferRequest> parcel;
  parcel->set_model(LongText());
  parcel.Attach(*parcel->mutable_input(), FloatTensor({first, first + 1, first + 2, first + 3}));
  return parcel;
}

// Waits, a second at most, for something that another thread brings about.
template <class F>
bool Eventually(F condition) {
  for (int i = 0; i < 10000 * kSlowdown; ++i) {
    if (condition()) return true;
    absl::SleepFor(absl::Microseconds(100));
  }
  return condition();
}

// Their handlers are set before their servers start.
struct GreeterMock {
  test::Greeter::Mock mock;
  GreeterMock() {
    mock.on_SayHello = [](ServerContext&, const test::HelloRequest& request,
                          test::HelloReply& reply) -> Task<absl::Status> {
      reply.set_text("Hello, " + request.name());
      return absl::OkStatus();
    };
    mock.on_SlowHello = [](ServerContext&, const test::HelloRequest& request,
                           test::HelloReply& reply) -> absl::Status {
      reply.set_text("Hello, " + request.name());
      return absl::OkStatus();
    };
  }
};
struct InferenceMock {
  test::Inference::Mock mock;
  InferenceMock() {
    mock.on_Infer = [](ServerContext&, const Parcel<test::InferRequest>& request,
                       Parcel<test::InferReply>& reply) -> Task<absl::Status> {
      VERBENA_CO_ASSIGN_OR_RETURN(Tensor input, co_await request.Fetch(request->input()));
      reply.Attach(*reply->mutable_output(), TwiceOf(input));
      co_return absl::OkStatus();
    };
  }
};

// Greets at once.
struct Greeter : GreeterMock {
  testing::Loopback loop{mock};
  test::Greeter::Stub stub{loop.channel()};
};

// Doubles a tensor.
struct Inference : InferenceMock {
  testing::Loopback loop{mock};
  test::Inference::Stub stub{loop.channel()};
};

}  // namespace verbena
