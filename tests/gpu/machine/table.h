#pragma once

namespace verbena::gpu_test {

// Prints what fetches between processes take beside the driver's own copies, as a table at the end.
// The exit status; 77: no GPU here.
int TableMain();

}  // namespace verbena::gpu_test
