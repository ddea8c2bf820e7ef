#pragma once
#include <string>

namespace verbena::gpu_test {

// Prints what fetches between processes take beside the driver's own copies, or a socket's own
// stream, as a table at the end; of the rows whose names hold `part`. The exit status; 77: no GPU
// here.
int TableMain(const std::string& part);

}  // namespace verbena::gpu_test
