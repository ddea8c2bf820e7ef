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
    if (empty()) return Clear();
    // A peer that is slow for ever may never let it run empty.
    if (head_ < kHeadBytesMax || head_ < bytes_.size() / 2) return;
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(head_));
    head_ = 0;
  }
  size_t capacity() const { return bytes_.capacity(); }
  void Clear() {
    std::vector<std::byte>().swap(bytes_);
    head_ = 0;
  }

 private:
  static constexpr size_t kHeadBytesMax = 4096;  // less is not worth a move

  std::vector<std::byte> bytes_;
  size_t head_ = 0;
};

}  // namespace verbena::session
