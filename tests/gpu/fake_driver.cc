#include "tests/gpu/fake_driver.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>

#include "rpc/base/check.h"
#include "tests/gpu/fake_driver_calls.h"

namespace verbena::gpu {
namespace fake {

FakeDriver* the = nullptr;
thread_local std::vector<abi::Context> current;
thread_local int capture_mode = 0;

}  // namespace fake

using abi::Address;
using abi::Result;
using fake::current;
using fake::GpuOf;
using fake::Pages;
using fake::the;

FakeDriver& FakeDriver::Reset(int gpus) {
  // What the last test left is not looked at again, but peers may still have it.
  static auto* const all = new std::vector<std::unique_ptr<FakeDriver>>;
  the = all->emplace_back(std::make_unique<FakeDriver>()).get();
  fake::AddDevices(the->table_);
  fake::AddMemory(the->table_);
  fake::AddSharing(the->table_);
  fake::AddStreams(the->table_);
  the->contexts.assign(static_cast<size_t>(gpus), 0);
  return *the;
}

FakeDriver& FakeDriver::Get() { return *the; }

bool FakeDriver::Refuses(const char* function, Result& result) {
  ++calls[function];
  static constexpr const char* kUnsafe[] = {
      "cuEventQuery", "cuStreamQuery",         "cuMemHostAlloc",       "cuMemCreate",
      "cuMemMap",     "cuIpcOpenMemHandle_v2", "cuMemHostRegister_v2", "cuModuleLoadData"};
  const bool unsafe =
      std::any_of(std::begin(kUnsafe), std::end(kUnsafe),
                  [function](const char* one) { return std::strcmp(one, function) == 0; });
  if (captured_ != nullptr && unsafe && fake::capture_mode != abi::kCaptureRelaxed) {
    capture_broken_ = true;
    result = abi::kStreamCaptureUnsupported;
    return true;
  }
  const auto it = failures_.find(function);
  if (it == failures_.end()) return false;
  result = it->second.first;
  if (!it->second.second) failures_.erase(it);
  return true;
}

void FakeDriver::Fail(const std::string& function, Result result, bool stays) {
  failures_[function] = {result, stays};
}

bool FakeDriver::InContext(int gpu) {
  const bool there = !current.empty() && (gpu < 0 || GpuOf(current.back()) == gpu);
  wrong_context += !there;
  return there;
}

FakeDriver::Memory* FakeDriver::Find(Address address, Address* base) {
  auto it = memories_.upper_bound(address);
  if (it == memories_.begin()) return nullptr;
  --it;
  if (address - it->first >= it->second.bytes) return nullptr;
  if (base != nullptr) *base = it->first;
  return &it->second;
}

std::byte* FakeDriver::Alias(Address address, size_t bytes) {
  Address base = 0;
  const Memory* const m = Find(address, &base);
  return m == nullptr || bytes > m->bytes - (address - base) ? nullptr
                                                             : m->alias + (address - base);
}

Address FakeDriver::Add(Memory memory) {
  void* const visible =
      mmap(nullptr, Pages(memory.bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  VERBENA_CHECK(visible != MAP_FAILED);
  const auto base = reinterpret_cast<Address>(visible);
  memory.id = next_id_++;
  memories_[base] = memory;
  return base;
}

Address FakeDriver::Malloc(int gpu, size_t bytes, MemoryKind kind) {
  Memory m;
  m.bytes = bytes;
  m.gpu = gpu;
  m.kind = kind;
  m.alias = static_cast<std::byte*>(
      mmap(nullptr, Pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  return Add(m);
}

void FakeDriver::Free(Address base) {
  const auto it = memories_.find(base);
  VERBENA_CHECK(it != memories_.end());
  memories_.erase(it);  // the address and the bytes stay: peers may have them
}

Address FakeDriver::Reserve(size_t bytes) {
  void* const visible = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  VERBENA_CHECK(visible != MAP_FAILED);
  reservations_[reinterpret_cast<Address>(visible)] = bytes;
  return reinterpret_cast<Address>(visible);
}

void FakeDriver::Map(Address at, size_t bytes, int gpu, bool descriptor) {
  abi::AllocationProperties how;
  how.location.id = gpu;
  how.handle_types = descriptor ? abi::kHandleTypePosix : 0;
  abi::Handle handle = 0;
  VERBENA_CHECK(table_.cuMemCreate(&handle, bytes, &how, 0) == abi::kSuccess);
  VERBENA_CHECK(table_.cuMemMap(at, bytes, 0, handle, 0) == abi::kSuccess);
  table_.cuMemRelease(handle);
}

void FakeDriver::Write(Address to, const void* from, size_t bytes) {
  std::memcpy(Alias(to, bytes), from, bytes);
}
void FakeDriver::Read(void* to, Address from, size_t bytes) {
  std::memcpy(to, Alias(from, bytes), bytes);
}

}  // namespace verbena::gpu
