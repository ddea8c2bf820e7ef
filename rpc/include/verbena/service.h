#pragma once
// What generated services are made of. Users see verbena::Service only; the rest is the contract
// with generated code.
#include <cstddef>
#include <cstdint>
#include <new>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "google/protobuf/message_lite.h"
#include "verbena/context.h"
#include "verbena/parcel.h"
#include "verbena/stream.h"
#include "verbena/task.h"

namespace verbena {

class Service;

enum class MethodKind : uint8_t { kUnary, kServerStreaming, kClientStreaming, kBidi };

namespace internal {

absl::Status WriteMessage(const google::protobuf::MessageLite& message, MessageWriter& out);
absl::Status ReadMessage(MessageReader& in, google::protobuf::MessageLite& message);

template <class M>
absl::Status Encode(const M& message, MessageWriter& out) {
  return WriteMessage(message, out);
}
template <class T>
absl::Status Encode(const Parcel<T>& parcel, MessageWriter& out) {
  return WriteParcel(parcel, ParcelAccess::Typed(parcel), out);
}
template <class M>
absl::Status Decode(MessageReader& in, M& message) {
  return ReadMessage(in, message);
}
template <class T>
absl::Status Decode(MessageReader& in, Parcel<T>& parcel) {
  return ReadParcel(in, parcel, ParcelAccess::Message(parcel), ParcelAccess::Typed(parcel));
}
template <class M>
void Reset(M& message) {
  message.Clear();
}
template <class T>
void Reset(Parcel<T>& parcel) {
  parcel.Release();
  ParcelAccess::Message(parcel).Clear();
}

// How the runtime makes, fills, reads and unmakes a message or a parcel without knowing its type.
struct ObjectOps {
  size_t bytes;
  size_t align;
  void (*construct)(void* object);
  void (*destroy)(void* object);
  void (*reset)(void* object);  // empty again, allocations kept
  absl::Status (*decode)(MessageReader& in, void* object);
  absl::Status (*encode)(const void* object, MessageWriter& out);
};
template <class T>
inline constexpr ObjectOps kOps = {
    sizeof(T),
    alignof(T),
    [](void* object) { new (object) T(); },
    [](void* object) { static_cast<T*>(object)->~T(); },
    [](void* object) { Reset(*static_cast<T*>(object)); },
    [](MessageReader& in, void* object) { return Decode(in, *static_cast<T*>(object)); },
    [](const void* object, MessageWriter& out) {
      return Encode(*static_cast<const T*>(object), out);
    },
};

struct HandlerArgs {
  Service& service;
  ServerContext& context;
  const void* request;
  void* reply;
  StreamRef stream;
};

struct MethodInfo {
  const char* path;  // "/package.Service/Method"
  MethodKind kind;
  bool idempotent;
  uint64_t request_bytes_max;  // 0 = the server's limit
  uint64_t reply_bytes_max;
  const ObjectOps* request;  // null when it is a stream
  const ObjectOps* reply;
  Task<absl::Status> (*handle)(const HandlerArgs&);
  absl::Status (*handle_blocking)(const HandlerArgs&);  // instead, for methods marked blocking
};

struct ServiceInfo {
  const char* full_name;
  absl::Span<const MethodInfo> methods;
};

inline absl::Status Unimplemented() {
  return absl::UnimplementedError("the service does not implement this method");
}

}  // namespace internal

class Service {
 public:
  Service() = default;
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;
  virtual ~Service() = default;
  virtual const internal::ServiceInfo& verbena_info() const = 0;
};

}  // namespace verbena
