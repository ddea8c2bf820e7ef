#pragma once
// What the kernel keeps time by.

namespace verbena::internal {

// Whether the file at `path`, which names the kernel's clock source, names the time stamp counter.
// False where it cannot be read. A few system calls. Any thread.
bool NamesTsc(const char* path);

}  // namespace verbena::internal
