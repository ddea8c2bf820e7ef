#pragma once
// The owner process: this program again, as a server, over a pipe told when to end.
#include <sys/types.h>

#include <memory>
#include <string>

#include "verbena/channel.h"

namespace verbena::gpu_test {

// Serves at `address` until its standard input ends.
int OwnerMain(const std::string& address);

// A process of its own that ends with this object.
class Owner {
 public:
  // `environment`: more of it, "NAME=value". `transport`: of the channel.
  explicit Owner(const std::string& environment = {}, const std::string& transport = "shm");
  ~Owner();
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  void Kill();
  const std::shared_ptr<Channel>& channel() const { return channel_; }

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  std::shared_ptr<Channel> channel_;
};

}  // namespace verbena::gpu_test
