#pragma once
// Records that wait for credits, in order, back to back. Gives its memory back when it runs empty,
// so that an idle link holds none.
#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "rpc/wire/frame.h"

namespace verbena::session {

class RecordQueue {
 public:
  bool empty() const { return head_ == bytes_.size(); }
  void Push(absl::Span<const std::byte> record) {
    bytes_.insert(bytes_.end(), record.begin(), record.end());
  }
  absl::Span<const std::byte> front() const {
    const std::byte* const at = bytes_.data() + head_;
    return {at, wire::Load<wire::RecordHeader>(at).bytes};
  }
  void Pop() {
    head_ += front().size();
    if (empty()) Clear();
  }
  void Clear() {
    std::vector<std::byte>().swap(bytes_);
    head_ = 0;
  }

 private:
  std::vector<std::byte> bytes_;
  size_t head_ = 0;
};

}  // namespace verbena::session
