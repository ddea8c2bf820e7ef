#include "verbena/server.h"

#include <utility>

#include "rpc/base/fork.h"
#include "rpc/server/server_core.h"

namespace verbena {

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  if (Forked()) return ForkedError();
  auto core = std::make_shared<internal::ServerCore>(options);
  absl::Status started = core->Start();
  if (!started.ok()) return started;
  return std::unique_ptr<Server>(new Server(std::move(core)));
}

Server::~Server() {
  if (!Forked()) core_->Shutdown();  // it is the parent's
}

const std::string& Server::address() const { return core_->address(); }
void Server::Drain(absl::Time deadline) { core_->Drain(deadline); }
void Server::Shutdown() { core_->Shutdown(); }
void Server::Wait() { core_->Wait(); }

}  // namespace verbena
