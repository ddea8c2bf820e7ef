#pragma once
// Device: where memory is. DeviceStream: a queue of a GPU's work. Values, cheap to copy.
#include <cstdint>

namespace verbena {

class Device {
 public:
  enum class Kind : uint8_t {
    kHost = 0,
    kCuda = 1,
    kFake = 255,  // this library's own tests: memory that the CPU may not touch
  };

  constexpr Device() = default;
  static constexpr Device Host() { return Device(); }
  static constexpr Device Cuda(int index) { return Device(Kind::kCuda, index); }
  static constexpr Device Fake(int index = 0) { return Device(Kind::kFake, index); }

  constexpr Kind kind() const { return kind_; }
  constexpr int index() const { return index_; }
  friend constexpr bool operator==(Device a, Device b) {
    return a.kind_ == b.kind_ && a.index_ == b.index_;
  }

 private:
  constexpr Device(Kind kind, int index) : kind_(kind), index_(index) {}
  Kind kind_ = Kind::kHost;
  int index_ = 0;
};

// A cudaStream_t or CUstream, of whatever made it; null is CUDA's legacy default stream of the GPU
// whose memory it is given for, in programs built with --default-stream per-thread too. Not the
// owner: it stays yours, and must live until what was given it has ended. cudaStreamPerThread is
// taken by After, on the thread that calls it; a fetch from a peer that is ordered by it
// is refused (INVALID_ARGUMENT), since on the library's threads it is another stream.
class DeviceStream {
 public:
  explicit DeviceStream(void* handle)
      : handle_(handle == nullptr ? reinterpret_cast<void*>(kDefault) : handle) {}

  // Never null.
  void* handle() const { return handle_; }

 private:
  static constexpr uintptr_t kDefault = 1;  // CU_STREAM_LEGACY
  void* handle_;
};

}  // namespace verbena
