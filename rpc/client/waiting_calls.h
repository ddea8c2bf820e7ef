#pragma once
// internal::WaitingCalls: calls that wait for a connection, in order. Adding one and taking one out
// cost the same however many wait.
//
// In the seat.
#include "rpc/client/unary_operation.h"

namespace verbena::internal {

class WaitingCalls {
 public:
  WaitingCalls() = default;
  WaitingCalls(const WaitingCalls&) = delete;
  WaitingCalls& operator=(const WaitingCalls&) = delete;

  bool empty() const { return first_ == nullptr; }
  UnaryOperation* first() const { return first_; }

  void Add(UnaryOperation& call) {
    call.waiting = true;
    call.next_waiting = nullptr;
    call.previous_waiting = end_;
    *end_ = &call;
    end_ = &call.next_waiting;
  }
  void Remove(UnaryOperation& call) {
    call.waiting = false;
    *call.previous_waiting = call.next_waiting;
    if (call.next_waiting != nullptr) {
      call.next_waiting->previous_waiting = call.previous_waiting;
    } else {
      end_ = call.previous_waiting;
    }
    call.next_waiting = nullptr;
  }

 private:
  UnaryOperation* first_ = nullptr;
  UnaryOperation** end_ = &first_;  // where the next is put
};

}  // namespace verbena::internal
