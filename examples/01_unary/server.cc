// A server with one method.  server ADDRESS
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "examples/common/termination.h"
#include "hello.verbena.h"
#include "verbena/verbena.h"

class GreeterImpl final : public hello::Greeter::Service {
  // Runs on a reactor thread. It never waits for anything, so it is a plain function that returns a
  // finished Task.
  verbena::Task<absl::Status> SayHello(verbena::ServerContext&, const hello::HelloRequest& request,
                                       hello::HelloReply& reply) override {
    if (request.name().empty()) return absl::InvalidArgumentError("name is empty");
    reply.set_text(absl::StrCat("Hello, ", request.name()));
    return absl::OkStatus();
  }
};

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: server ADDRESS\n");
    return 2;
  }
  GreeterImpl greeter;
  auto server =
      verbena::Server::Start(verbena::ServerOptions().set_listen(argv[1]).add_service(greeter));
  if (!server.ok()) {
    std::fprintf(stderr, "server: %s\n", server.status().ToString().c_str());
    return 1;
  }
  std::printf("serving hello.Greeter on %s\n", argv[1]);
  std::fflush(stdout);
  verbena::examples::WaitForTermination();
}
