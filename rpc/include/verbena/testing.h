#pragma once
// For tests: a server in this process and a channel to it, over the real path. With a generated
// mock:
//   demo::Greeter::Mock mock;
//   verbena::testing::Loopback loop(mock);
//   demo::Greeter::Stub stub(loop.channel());
#include <functional>
#include <memory>

#include "verbena/channel.h"
#include "verbena/server.h"

namespace verbena::testing {

class Loopback {
 public:
  // Ends the process with the reason when no server can be started.
  explicit Loopback(Service& service, const ChannelOptions& options = {});
  ~Loopback();
  Loopback(const Loopback&) = delete;
  Loopback& operator=(const Loopback&) = delete;

  const std::shared_ptr<Channel>& channel() const { return channel_; }
  Server& server() { return *server_; }

 private:
  std::unique_ptr<Server> server_;
  std::shared_ptr<Channel> channel_;
};

}  // namespace verbena::testing
