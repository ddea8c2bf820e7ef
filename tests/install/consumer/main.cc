// A server and a client of it in one process; exits with 0 when both kinds of handler answered.
#include <cstdio>
#include <string>

#include "greeter.verbena.h"
#include "verbena/verbena.h"

namespace {

class GreeterService final : public consumer::Greeter::Service {
  verbena::Task<absl::Status> SayHello(verbena::ServerContext&,
                                       const consumer::HelloRequest& request,
                                       consumer::HelloReply& reply) override {
    reply.set_text("Hello, " + request.name());
    return absl::OkStatus();
  }
  absl::Status SlowHello(verbena::ServerContext&, const consumer::HelloRequest& request,
                         consumer::HelloReply& reply) override {
    reply.set_text("Slowly, " + request.name());
    return absl::OkStatus();
  }
};

bool Expect(const absl::StatusOr<consumer::HelloReply>& reply, const std::string& text) {
  std::printf("%s\n", reply.ok() ? reply->text().c_str() : reply.status().ToString().c_str());
  return reply.ok() && reply->text() == text;
}

}  // namespace

int main() {
  GreeterService service;
  auto server = verbena::Server::Start(
      verbena::ServerOptions().set_listen("127.0.0.1:0").add_service(service));
  if (!server.ok()) {
    std::printf("%s\n", server.status().ToString().c_str());
    return 1;
  }
  consumer::Greeter::Stub stub(verbena::Channel::Create((*server)->address()));
  consumer::HelloRequest request;
  request.set_name("world");
  verbena::CallOptions options;
  options.set_timeout(absl::Seconds(20));
  bool right = Expect(stub.SayHello(request, options).Get(), "Hello, world");
  right = Expect(stub.SlowHello(request, options).Get(), "Slowly, world") && right;
  return right ? 0 : 1;
}
