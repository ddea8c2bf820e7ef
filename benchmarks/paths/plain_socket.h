#pragma once
// How a GPU's tensor goes over TCP without a library for it: copied to ordinary host memory, sent,
// received into ordinary host memory, copied to the GPU, one after the other.
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "verbena/buffer.h"

namespace verbena::benchmarks::paths {

// What a reader asks for, in one byte.
enum class PlainWay : uint8_t { kGpu, kHostOnly, kHotOnly };

// Sends `memory`, of the first GPU, to whoever connects: for each byte that it is sent, once.
class PlainSender {
 public:
  explicit PlainSender(Buffer memory);
  ~PlainSender();
  PlainSender(const PlainSender&) = delete;
  PlainSender& operator=(const PlainSender&) = delete;
  uint16_t port() const { return port_; }

 private:
  void Serve();

  const Buffer memory_;
  std::vector<std::byte> host_;
  uint16_t port_ = 0;
  int listener_ = -1;
  std::thread thread_;
};

class PlainReader {
 public:
  PlainReader(uint16_t port, size_t bytes);
  ~PlainReader();
  PlainReader(const PlainReader&) = delete;
  PlainReader& operator=(const PlainReader&) = delete;
  // Into memory of GPU `gpu`. With kHostOnly the bytes stay in host memory, and were there: what
  // the socket alone takes; with kHotOnly they are the same mebibyte over and over, on both sides.
  // UNAVAILABLE: the sender is gone.
  absl::Status Read(PlainWay way, int gpu, std::byte* to);

 private:
  std::vector<std::byte> host_;
  int fd_ = -1;
};

}  // namespace verbena::benchmarks::paths
