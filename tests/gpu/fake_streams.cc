// The fake driver's streams and events, and the copies and kernels on them.
#include <cstring>
#include <utility>

#include "rpc/base/check.h"
#include "rpc/gpu/copy_kernel.h"
#include "tests/gpu/fake_driver_calls.h"

namespace verbena::gpu::fake {
namespace {

Result StreamCreate(abi::Stream* stream, unsigned flags, int) {
  FAKE_CALL(cuStreamCreateWithPriority)
  if (!the->InContext()) return abi::kInvalidContext;
  VERBENA_CHECK(flags == abi::kStreamNonBlocking, "a stream that waits for others");
  *stream = the->MakeStream(GpuOf(current.back()));
  return abi::kSuccess;
}
Result StreamDestroy(abi::Stream stream) {
  std::erase(the->streams_, &Of(stream));
  delete &Of(stream);
  return abi::kSuccess;
}
Result StreamQuery(abi::Stream stream) {
  FAKE_CALL(cuStreamQuery)
  return Of(stream).queue.empty() ? abi::kSuccess : abi::kNotReady;
}
Result StreamGetCtx(abi::Stream stream, abi::Context* context) {
  *context = ContextOf(Of(stream).gpu);
  return abi::kSuccess;
}
Result StreamIsCapturing(abi::Stream stream, int* captures) {
  FAKE_CALL(cuStreamIsCapturing)
  *captures = stream == the->captured_ ? 1 : 0;
  return abi::kSuccess;
}
Result ThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return abi::kSuccess;
}
Result StreamWaitEvent(abi::Stream stream, abi::Event event, unsigned) {
  FAKE_CALL(cuStreamWaitEvent)
  if (the->Captures(stream)) return abi::kSuccess;
  Of(stream).queue.push_back({nullptr, &Of(event).reached, Of(event).recorded});
  return abi::kSuccess;
}
Result StreamWriteValue32(abi::Stream stream, Address address, uint32_t value, unsigned flags) {
  FAKE_CALL(cuStreamWriteValue32_v2)
  if (the->Captures(stream)) return abi::kSuccess;
  VERBENA_CHECK(flags == 0, "a write without its barrier");
  std::byte* const to = the->Alias(address, sizeof value);
  Of(stream).queue.push_back({[to, value] { std::memcpy(to, &value, sizeof value); }});
  return abi::kSuccess;
}
Result EventCreate(abi::Event* event, unsigned flags) {
  FAKE_CALL(cuEventCreate)
  VERBENA_CHECK(flags == abi::kEventDisableTiming);
  *event = reinterpret_cast<abi::Event>(new FakeDriver::EventState);
  return abi::kSuccess;
}
Result EventRecord(abi::Event event, abi::Stream stream) {
  FAKE_CALL(cuEventRecord)
  if (the->Captures(stream)) return abi::kSuccess;
  FakeDriver::EventState& state = Of(event);
  const uint64_t number = ++state.recorded;
  Of(stream).queue.push_back({[&state, number] { state.reached = number; }});
  return abi::kSuccess;
}
Result EventQuery(abi::Event event) {
  FAKE_CALL(cuEventQuery)
  return Of(event).reached == Of(event).recorded ? abi::kSuccess : abi::kNotReady;
}
Result EventDestroy(abi::Event event) {
  delete &Of(event);
  return abi::kSuccess;
}
Result MemcpyAsync(Address to, Address from, size_t bytes, abi::Stream stream) {
  FAKE_CALL(cuMemcpyAsync)
  if (!the->InContext(Of(stream).gpu)) return abi::kInvalidContext;
  std::byte* const there = the->Alias(to, bytes);
  const std::byte* const here = the->Alias(from, bytes);
  if (there == nullptr || here == nullptr) return abi::kInvalidValue;  // the driver would block
  Of(stream).queue.push_back({[=] { std::memcpy(there, here, bytes); }});
  return abi::kSuccess;
}

// One module, with one function: the copy kernel.
Result ModuleLoadData(abi::Module* module, const void* image) {
  FAKE_CALL(cuModuleLoadData)
  if (!the->InContext() || image != CopyKernel::ptx()) return abi::kInvalidContext;
  *module = reinterpret_cast<abi::Module>(the);
  return abi::kSuccess;
}
Result ModuleGetFunction(abi::Function* function, abi::Module, const char* name) {
  if (std::strcmp(name, "verbena_copy") != 0) return abi::kInvalidValue;
  *function = reinterpret_cast<abi::Function>(the);
  return abi::kSuccess;
}
Result LaunchKernel(abi::Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                    unsigned, abi::Stream stream, void** parameters, void**) {
  FAKE_CALL(cuLaunchKernel)
  const int gpu = Of(stream).gpu;
  if (!the->InContext(gpu)) return abi::kInvalidContext;
  const auto* const pieces = static_cast<const CopyKernel::Piece*>(parameters[0]);
  const uint32_t count = *static_cast<const uint32_t*>(parameters[1]);
  for (uint32_t i = 0; i < count; ++i) {
    const auto [to, from, bytes] = pieces[i];
    std::byte* const there = the->Alias(to, bytes);
    const std::byte* const here = the->Alias(from, bytes);
    const bool aligned = to % 16 == 0 && from % 16 == 0;
    const bool reached = the->Find(to)->gpu == gpu && !the->Find(to)->imported &&
                         (the->Find(from)->gpu == gpu || the->Find(from)->imported);
    the->kernel_faults += there == nullptr || here == nullptr || !aligned || !reached;
    Of(stream).queue.push_back({[=, n = bytes] { std::memcpy(there, here, n); }});
  }
  return abi::kSuccess;
}

}  // namespace

void AddStreams(Driver& d) {
  d.cuStreamCreateWithPriority = StreamCreate;
  d.cuStreamDestroy_v2 = StreamDestroy;
  d.cuStreamQuery = StreamQuery;
  d.cuStreamGetCtx = StreamGetCtx;
  d.cuStreamIsCapturing = StreamIsCapturing;
  d.cuThreadExchangeStreamCaptureMode = ThreadExchangeStreamCaptureMode;
  d.cuStreamWaitEvent = StreamWaitEvent;
  d.cuStreamWriteValue32_v2 = StreamWriteValue32;
  d.cuEventCreate = EventCreate;
  d.cuEventRecord = EventRecord;
  d.cuEventQuery = EventQuery;
  d.cuEventDestroy_v2 = EventDestroy;
  d.cuMemcpyAsync = MemcpyAsync;
  d.cuModuleLoadData = ModuleLoadData;
  d.cuModuleGetFunction = ModuleGetFunction;
  d.cuLaunchKernel = LaunchKernel;
}

}  // namespace verbena::gpu::fake

namespace verbena::gpu {

using fake::Of;

abi::Stream FakeDriver::MakeStream(int gpu) {
  auto* const made = new StreamState;
  made->gpu = gpu;
  streams_.push_back(made);
  return reinterpret_cast<abi::Stream>(made);
}

void FakeDriver::Launch(abi::Stream stream, std::function<void()> kernel, bool held) {
  Operation operation;
  operation.act = std::move(kernel);
  if (held) operation.released = &kernels_released_, operation.needs = kernels_released_ + 1;
  Of(stream).queue.push_back(std::move(operation));
}

void FakeDriver::ReleaseKernels() { ++kernels_released_; }

void FakeDriver::BeginCapture(abi::Stream stream) {
  captured_ = stream;
  capture_broken_ = false;
}

bool FakeDriver::EndCapture() {
  captured_ = nullptr;
  return !capture_broken_;
}

bool FakeDriver::Captures(abi::Stream stream) {
  if (captured_ == nullptr || stream != captured_) return false;
  capture_broken_ = true;
  return true;
}

size_t FakeDriver::Run(size_t operations) {
  size_t done = 0;
  for (bool any = true; any && done < operations;) {
    any = false;
    for (StreamState* stream : streams_) {
      while (!stream->queue.empty() && done < operations) {
        Operation& front = stream->queue.front();
        if (front.released != nullptr && *front.released < front.needs) break;
        if (front.act) front.act();
        stream->queue.pop_front();
        ++done;
        any = true;
      }
    }
  }
  return done;
}

size_t FakeDriver::pending() const {
  size_t pending = 0;
  for (const StreamState* stream : streams_) pending += stream->queue.size();
  return pending;
}

}  // namespace verbena::gpu
