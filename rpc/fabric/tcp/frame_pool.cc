#include "rpc/fabric/tcp/frame_pool.h"

#include <sys/mman.h>

#include <cerrno>

#include "rpc/base/check.h"
#include "rpc/base/limits.h"

namespace verbena::fabric::tcp {
namespace {

constexpr size_t kPoolBytes = size_t{limits::kTcpFramesMax} * limits::kTcpSegmentBytes;

}  // namespace

FramePool::FramePool() {
  void* base = mmap(nullptr, kPoolBytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  VERBENA_CHECK(base != MAP_FAILED, "mmap of ", kPoolBytes, ": errno ", errno);
  base_ = static_cast<std::byte*>(base);
  free_.reserve(limits::kTcpFramesMax);
  for (uint32_t i = limits::kTcpFramesMax; i > 0; --i) free_.push_back(i - 1);
}

FramePool::~FramePool() { munmap(base_, kPoolBytes); }

bool FramePool::Allows(uint32_t held) const {
  return held < limits::kTcpFramesPerLinkMax && held < free_.size();
}

uint32_t FramePool::Acquire() {
  VERBENA_DCHECK(!free_.empty());
  const uint32_t token = free_.back();
  free_.pop_back();
  return token;
}

std::byte* FramePool::Data(uint32_t token) const {
  VERBENA_DCHECK(token < limits::kTcpFramesMax, "buffer ", token);
  return base_ + size_t{token} * limits::kTcpSegmentBytes;
}

}  // namespace verbena::fabric::tcp
