#include "rpc/memory/no_growth.h"

namespace verbena::memory {
namespace {
thread_local NoGrowth* innermost = nullptr;
}  // namespace

NoGrowth::NoGrowth() : outer_(innermost) { innermost = this; }
NoGrowth::~NoGrowth() { innermost = outer_; }

bool NoGrowth::Refuse() {
  if (innermost == nullptr) return false;
  innermost->refused_ = true;
  return true;
}

}  // namespace verbena::memory
