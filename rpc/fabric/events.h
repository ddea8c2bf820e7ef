#pragma once
// Events: what a fabric has to tell its session, kept until Poll, since no method calls the sink
// back inline. Reactor thread only.
#include <cstdint>
#include <utility>
#include <vector>

#include "rpc/fabric/fabric.h"

namespace verbena::fabric {

class Events {
 public:
  bool empty() const { return queued_.empty(); }

  void Sendable(LinkId link) { Add(Kind::kSendable).link = link; }
  void Leased(LeaseSlot slot, const RemoteKey& key) {
    Event& event = Add(Kind::kLeased);
    event.lease = slot;
    event.key = key;
  }
  void LeaseRefused(LeaseSlot slot, Error error) {
    Event& event = Add(Kind::kLeased);
    event.lease = slot;
    event.error = error;
  }
  void Revoked(LeaseSlot slot) { Add(Kind::kRevoked).lease = slot; }
  void ReadDone(ReadSlot slot, Error error, Path path = Path::kNone) {
    Event& event = Add(Kind::kReadDone);
    event.read = slot;
    event.error = error;
    event.path = path;
  }
  void ReadOrdered(ReadSlot slot, Path path) {
    Event& event = Add(Kind::kReadOrdered);
    event.read = slot;
    event.path = path;
  }
  void LaneDown(LinkId link, Lane lane) {
    Event& event = Add(Kind::kLaneDown);
    event.link = link;
    event.lane = lane;
    event.error = Error::kLaneDown;
  }
  void LinkDown(LinkId link) { Add(Kind::kLinkDown).link = link; }

  // Tells the sink all of them; what it causes meanwhile waits for the next time.
  // `is_up(link)`: it still takes frames. `remove(link)`: forgets one that is down, returns its
  // cause.
  template <class IsUp, class Remove>
  void Deliver(EventSink& sink, const IsUp& is_up, const Remove& remove) {
    std::swap(queued_, delivering_);
    for (const Event& event : delivering_) DeliverOne(event, sink, is_up, remove);
    delivering_.clear();
  }

 private:
  enum class Kind : uint8_t {
    kSendable,
    kLeased,
    kRevoked,
    kReadDone,
    kReadOrdered,
    kLaneDown,
    kLinkDown
  };
  struct Event {
    Kind kind = Kind::kSendable;
    Error error = Error::kOk;
    Path path = Path::kNone;
    LinkId link = LinkId::kNone;
    Lane lane;
    LeaseSlot lease;
    ReadSlot read;
    RemoteKey key;
  };

  Event& Add(Kind kind) {
    Event& event = queued_.emplace_back();
    event.kind = kind;
    return event;
  }

  template <class IsUp, class Remove>
  static void DeliverOne(const Event& event, EventSink& sink, const IsUp& is_up,
                         const Remove& remove) {
    switch (event.kind) {
      case Kind::kSendable:
        if (is_up(event.link)) sink.OnSendable(event.link);
        return;
      case Kind::kLeased:
        return sink.OnLeased(event.lease, event.error, event.key);
      case Kind::kRevoked:
        return sink.OnRevoked(event.lease);
      case Kind::kReadDone:
        if (event.path != Path::kNone) sink.OnReadPath(event.read, event.path);
        return sink.OnReadDone(event.read, event.error);
      case Kind::kReadOrdered:
        sink.OnReadPath(event.read, event.path);
        return sink.OnReadOrdered(event.read);
      case Kind::kLaneDown:
        return sink.OnLaneDown(event.link, event.lane, event.error);
      case Kind::kLinkDown: {
        const absl::Status cause = remove(event.link);  // before the sink uses the number again
        return sink.OnLinkDown(event.link, cause);
      }
    }
  }

  std::vector<Event> queued_, delivering_;
};

}  // namespace verbena::fabric
