#pragma once
// The other process: has a tensor on the first GPU and gives it away in every way that there is.
#include <sys/types.h>

#include <memory>
#include <string>

namespace verbena::benchmarks::paths {

// What the bytes are: 32-bit words kSeed, kSeed + 1, ...
inline constexpr uint32_t kSeed = 12345;

// Serves, says its address on standard output, and ends when standard input does.
int OwnerMain();

// This program again, as the owner; ends with this object.
class OwnerProcess {
 public:
  OwnerProcess();
  ~OwnerProcess();
  OwnerProcess(const OwnerProcess&) = delete;
  OwnerProcess& operator=(const OwnerProcess&) = delete;
  const std::string& address() const { return address_; }

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  std::string address_;
};

// Of this process: user and system time.
double CpuSeconds();

}  // namespace verbena::benchmarks::paths
