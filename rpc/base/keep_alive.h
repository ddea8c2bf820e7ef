#pragma once

namespace verbena {

// Has the kernel ask the other end of a TCP connection for a sign of life: a machine that is gone
// without a word (power, network) makes the socket fail with ETIMEDOUT after about 11 s in which
// nothing is under way. Sooner, and a slow network would end connections. Does nothing to a unix
// socket. Any thread.
void KeepAlive(int fd);

}  // namespace verbena
