#pragma once
// What the server does to a ServerContext.
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "rpc/session/session.h"
#include "verbena/context.h"

namespace verbena::internal {

struct ServerContextAccess {
  static void Begin(ServerContext& context, absl::string_view method, absl::string_view peer,
                    absl::string_view transport, absl::Time deadline,
                    session::MetadataView metadata) {
    context.method_ = method;
    context.peer_ = peer;
    context.transport_ = transport;
    context.deadline_ = deadline;
    for (const auto& [key, value] : metadata) context.metadata_.Add(key, value);
  }
  // As good as new. No Sleep of it is left.
  static void Reset(ServerContext& context) {
    context.cancelled_.store(false, std::memory_order_relaxed);
    if (!context.metadata_.empty()) context.metadata_.clear();
    if (!context.trailing_.empty()) context.trailing_.clear();
    if (context.stop_.load(std::memory_order_relaxed) != nullptr) [[unlikely]] {
      delete context.stop_.exchange(nullptr, std::memory_order_relaxed);
    }
  }
  // Sets the flag, wakes sleepers, runs users' stop callbacks. On the reactor's own thread.
  static void Cancel(ServerContext& context);
  // Only the flag. In the seat.
  static void Mark(ServerContext& context) {
    context.cancelled_.store(true, std::memory_order_release);
  }
  static const Metadata& trailing(const ServerContext& context) { return context.trailing_; }
  static void DropTrailing(ServerContext& context) { context.trailing_.clear(); }
  static bool HasSleepers(const ServerContext& context) { return context.sleepers_ != nullptr; }
  static bool HasWaiters(const ServerContext& context) {
    return context.sleepers_ != nullptr || context.stop_.load() != nullptr;
  }
};

}  // namespace verbena::internal
