#pragma once
// A CUDA driver for tests, behind gpu::Driver's table: GPUs whose memory the CPU cannot touch, and
// streams whose work is done when the test says so (Run), in stream order. It counts what this
// project promises not to do.
//
//   FakeDriver& cuda = FakeDriver::Reset(2);      // two GPUs
//   auto gpu = *gpu::CudaDevice::Create(cuda.table(), 0);
//   abi::Address user = cuda.Malloc(0, 1 << 20);  // as cudaMalloc on cuda:0
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "rpc/gpu/driver.h"
#include "rpc/gpu/pointer.h"

namespace verbena::gpu {

class FakeDriver {
 public:
  // One per process, since a table of functions has no object. Forgets everything.
  static FakeDriver& Reset(int gpus);
  static FakeDriver& Get();

  Driver& table() { return table_; }

  // ---- what a user's program does
  abi::Address Malloc(int gpu, size_t bytes, MemoryKind kind = MemoryKind::kMalloc);
  void Free(abi::Address base);
  // A mapping of fresh physical memory at `at` of a reservation.
  void Map(abi::Address at, size_t bytes, int gpu, bool descriptor = true);
  abi::Address Reserve(size_t bytes);
  abi::Stream MakeStream(int gpu);
  void Write(abi::Address to, const void* from, size_t bytes);
  void Read(void* to, abi::Address from, size_t bytes);
  // Work of the user's on a stream: runs in its turn, in Run, once it is released.
  void Launch(abi::Stream stream, std::function<void()> kernel = nullptr, bool held = false);
  void ReleaseKernels();
  // A thread of the user's captures the stream into a graph, as frameworks do. What threads then
  // call that might be unsafe fails and breaks it, but for those that exchanged their mode. At the
  // end, whether the graph is whole, and nothing of others is in it.
  void BeginCapture(abi::Stream stream);
  bool EndCapture();

  // Does what can be done on all streams, at most `operations`; returns how many were done.
  size_t Run(size_t operations = SIZE_MAX);
  size_t pending() const;

  // The next call of that function gives `result`, and the later ones too if it stays.
  void Fail(const std::string& function, abi::Result result, bool stays = false);

  bool nvlink = true;             // between them
  bool peers = true;              // GPUs reach each other's memory
  size_t memory_bytes = 1 << 30;  // of a GPU
  bool descriptors = true;        // cuMemCreate takes handles of POSIX type
  std::vector<int> contexts;      // retained, by GPU
  int wrong_context = 0;          // calls without the context that they need
  int kernel_faults = 0;          // pieces that would have faulted a kernel
  std::map<std::string, int> calls;
  std::map<abi::DeviceAttribute, int> attributes;  // others are 1
  size_t live() const { return memories_.size() + handles_.size(); }

  // ---- behind the table
  struct Memory {
    size_t bytes = 0;
    std::byte* alias = nullptr;  // where the CPU finds it
    int gpu = 0;
    MemoryKind kind = MemoryKind::kMalloc;
    bool host = false;  // page-locked
    uint64_t id = 0;
    abi::Handle handle = 0;  // kVirtual
    bool imported = false;
    int opened = 0;
  };
  struct Physical {
    size_t bytes = 0;
    int fd = -1;
    int gpu = 0;
    bool descriptor = false;
    int references = 0;
  };
  struct Operation {
    std::function<void()> act;
    const uint64_t* released = nullptr;  // an event's count, or a kernel's leave
    uint64_t needs = 0;
  };
  struct StreamState {
    int gpu = 0;
    std::deque<Operation> queue;
  };
  struct EventState {
    uint64_t recorded = 0, reached = 0;
  };

  bool Refuses(const char* function, abi::Result& result);
  // Whether it becomes part of the graph: then that is no good any more.
  bool Captures(abi::Stream stream);
  // Whether the thread's context is there, and the GPU's where `gpu` is one.
  bool InContext(int gpu = -1);
  Memory* Find(abi::Address address, abi::Address* base = nullptr);
  std::byte* Alias(abi::Address address, size_t bytes);
  abi::Address Add(Memory memory);

  std::map<abi::Address, Memory> memories_;
  std::map<abi::Address, size_t> reservations_;
  std::map<abi::Handle, Physical> handles_;
  std::vector<StreamState*> streams_;
  std::map<std::string, std::pair<abi::Result, bool>> failures_;
  uint64_t next_id_ = 100;
  abi::Handle next_handle_ = 1;
  uint64_t kernels_released_ = 0;
  abi::Stream captured_ = nullptr;
  bool capture_broken_ = false;

 private:
  Driver table_;
};

}  // namespace verbena::gpu
