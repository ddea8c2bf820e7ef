#pragma once
// Why this process has no RDMA device, or not all that the machine has: a pure function over what
// was seen. Includes no verbs header.
#include <string>
#include <vector>

namespace verbena::fabric::verbs {

struct SeenDevices {
  std::vector<std::string> kernel;      // in /sys/class/infiniband
  std::vector<std::string> user_verbs;  // in /sys/class/infiniband_verbs: uverbs0, ...
  std::vector<std::string> listed;      // by libibverbs
  int list_error = 0;                   // errno of listing, if it failed
  struct Unusable {
    std::string name;
    std::string node;  // "/dev/infiniband/uverbs0"
    int error = 0;     // errno of opening; 0: it was opened, and will not do because of `reason`
    std::string reason;
  };
  std::vector<Unusable> unusable;
  bool forked = false;  // this is a child of fork()
};

struct Missing {
  std::string what;
  std::string cure;  // a command, or what to do instead; may be empty
};
// One for each thing that is in the way. Empty: every device of the machine can be used. Any
// thread.
std::vector<Missing> MissingDevices(const SeenDevices& seen);
// The same as one text.
std::string WhyMissing(const SeenDevices& seen);

}  // namespace verbena::fabric::verbs
