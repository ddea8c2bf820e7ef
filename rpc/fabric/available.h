#pragma once
// The fabrics that this process has, for one reactor, best first. Everything above asks here and
// names none.
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "rpc/fabric/fabric.h"
#include "rpc/memory/device.h"

namespace verbena::fabric {

struct FabricOptions {
  // The host's memory: imports what peers export, copies. Outlives the fabrics. Required.
  memory::Device* host = nullptr;
  // Runs a job on the setup thread, never inline: reactor::PostSetup. Any thread. Required.
  std::function<void(absl::AnyInvocable<void() &&>)> post_setup;
  int numa_node = -1;  // of the reactor; -1: any
};

// In order of preference. One that this process cannot have is left out. Any thread.
std::vector<std::unique_ptr<Fabric>> MakeFabrics(const FabricOptions& options);

// The names of all fabrics that there are for links between processes, best first.
inline constexpr std::array<absl::string_view, 3> kFabricNames = {"shm", "verbs", "tcp"};
// Why the last MakeFabrics left that one out, for people; at most kWhyBytesMax, and empty when it
// did not. Any thread.
inline constexpr size_t kWhyBytesMax = 1024;
std::string WhyMissing(absl::string_view name);

// Besides links' own, fabrics make connections to the address where HELLO was said (bulk lanes);
// they begin with a greeting, which no HELLO begins with.
inline constexpr size_t kGreetingBytes = 20;
// `bytes`: at least four, the first that came.
bool IsGreeting(absl::string_view bytes);
// Takes `fd`, from which exactly the greeting has been read. False: nobody waits for it; it is
// closed. Any thread; never blocks.
bool TakeGreeted(absl::string_view greeting, int fd);

}  // namespace verbena::fabric
