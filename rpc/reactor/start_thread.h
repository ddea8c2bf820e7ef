#pragma once
// Threads of the library: named, with all signals blocked (they belong to the application's
// threads).
#include <string>
#include <thread>

#include "absl/functional/any_invocable.h"

namespace verbena::reactor {

// `name`: the first 15 characters show in top and gdb. Throws nothing; ends the process when the
// system has no thread left (as std::thread would by an exception that nobody can handle).
std::thread StartThread(const std::string& name, absl::AnyInvocable<void() &&> body);

}  // namespace verbena::reactor
