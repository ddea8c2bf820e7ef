#pragma once
// fabric::DeviceCopies: copies between stages and memory that the CPU may not touch, by the
// devices' own engines. Reactor thread only.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "rpc/fabric/fabric.h"
#include "rpc/fabric/stages.h"
#include "rpc/memory/device.h"

namespace verbena::fabric {

class DeviceCopies {
 public:
  // Who waits for a copy. The objects may be gone when it ends: they are found again by name.
  struct Job {
    LinkId link = LinkId::kNone;
    uint64_t link_serial = 0;
    Lane lane;
    LeaseSlot lease;     // owner's end: what is read
    uint32_t place = 0;  // and which request asked for it
    ReadSlot read;       // reader's end: what is written
    uint32_t stage = 0;
    std::shared_ptr<Stages> stages;
  };

  // False: the device's queue is full, try again after Poll.
  bool Start(memory::Device& device, absl::Span<const memory::CopyPiece> pieces, const Job& job);
  bool busy() const { return !jobs_.empty(); }
  // Whether a copy of that link, or of one lane of it, is under way.
  bool Busy(LinkId link, const Lane* lane) const;
  // Works, and says which copies ended. Whether any did.
  bool Poll(absl::FunctionRef<void(const Job& job, bool ok)> done);

 private:
  std::map<memory::Device*, std::unique_ptr<memory::CopyEngine>> engines_;
  std::map<uint64_t, Job> jobs_;
  uint64_t next_ = 1;
};

}  // namespace verbena::fabric
