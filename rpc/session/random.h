#pragma once
// Unguessable values, from the kernel.
#include <cstddef>
#include <string>

#include "rpc/wire/hello.h"

namespace verbena::session {

// Any thread.
wire::HelloToken RandomToken();
std::string RandomHex(size_t bytes);
// 128 random bits, the same as long as this process lives.
const wire::HelloToken& ProcessIncarnation();

}  // namespace verbena::session
