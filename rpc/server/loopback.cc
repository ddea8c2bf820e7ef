#include "rpc/base/check.h"
#include "verbena/testing.h"

namespace verbena::testing {

Loopback::Loopback(Service& service, const ChannelOptions& options) {
  absl::StatusOr<std::unique_ptr<Server>> server =
      Server::Start(ServerOptions().set_listen("127.0.0.1:0").add_service(service));
  VERBENA_CHECK(server.ok(), "no loopback server: ", server.status().ToString());
  server_ = *std::move(server);
  channel_ = Channel::Create(server_->address(), options);
}

Loopback::~Loopback() = default;

}  // namespace verbena::testing
