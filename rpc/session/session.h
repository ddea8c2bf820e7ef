#pragma once
// session::Engine and session::Link: the conversation with peers, on one reactor. What client/ and
// server/ see of it.
//
//   client/ gives a ClientCall to Link::StartCall and gets OnReply exactly once;
//   server/ registers a RequestSink, gets OnRequest for each call, and answers with Link::Reply
//   exactly once; either side's received tensors are a PayloadSet: Fetch pulls a range of one,
//   Release gives them back.
//
// A completed call owns nothing: OnReply comes only when every lease of the call's request is
// released or revoked and no READ into a destination that the caller lent can still write.
// Everything here is in the reactor's seat unless it says "Any thread.".
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "rpc/base/ids.h"
#include "rpc/fabric/fabric.h"
#include "rpc/memory/region.h"
#include "rpc/reactor/reactor.h"

namespace verbena::session {

class Engine;
class Link;

// Key-value pairs that travel with a call; keys lower case, `-bin` keys hold binary values. Pairs
// in order.
using MetadataView = absl::Span<const std::pair<absl::string_view, absl::string_view>>;

// One payload that leaves with a message: [data, data + bytes) of `region`, leased to the peer.
// Whoever gives it keeps the memory alive until the call's OnReply (requests) or
// ServerCall::OnReplyLeasesEnded (replies).
struct OutgoingPayload {
  uint64_t ticket = 0;  // what the descriptors in the message say
  memory::RegionRef region;
  const std::byte* data = nullptr;
  uint64_t bytes = 0;
  memory::ReadinessRef after = nullptr;  // the message leaves when that has ended; null: nothing
};

// A serialised message and what travels beside it. Borrowed until the call that takes it returns,
// except `body` when it has a region: that is leased, and stays the giver's until the same moment
// as payloads; or when it lies on the heap: that is shared until it was copied into the pools.
struct Outgoing {
  absl::Span<const std::byte> body;
  memory::RegionRef
      body_region;  // set when body lies in the pools; needed above the link's inline limit
  absl::Span<const OutgoingPayload> payloads;
  MetadataView metadata;
  const std::shared_ptr<std::byte[]>* body_heap = nullptr;  // null: body lies elsewhere
};

// The payloads of one received message. Reference-counted; any thread may hold one.
class PayloadSet {
 public:
  struct Entry {
    uint64_t ticket = 0;
    uint64_t bytes = 0;
    ::verbena::Device where;  // at the owner
  };
  virtual absl::Span<const Entry> entries() const = 0;
  // Of the link it came by: "shm", "tcp", ... A static string.
  virtual absl::string_view transport() const = 0;
  // Any thread. Gives every lease back; fetches under way end with CANCELLED when their posted
  // chunks have finished.
  virtual void Release() = 0;
  virtual ~PayloadSet() = default;
};
using PayloadSetRef = std::shared_ptr<PayloadSet>;

// One transfer: [offset, offset + sum of pieces) of one payload into `pieces`. The user of it keeps
// the object and the destination alive until OnDone, which comes exactly once, with:
//   OK; CANCELLED (released, or its call ended); UNAVAILABLE (link gone); DATA_LOSS (lease lost);
//   OUT_OF_RANGE; RESOURCE_EXHAUSTED (budget, names it); DEADLINE_EXCEEDED;
//   FAILED_PRECONDITION (by another path than the one required, no byte has moved).
class Fetch {
 public:
  uint32_t entry = 0;
  uint64_t offset = 0;
  absl::InlinedVector<fabric::LocalPiece, 1> pieces;
  int64_t deadline_ns = 0;          // 0 = none
  Path require_path = Path::kNone;  // FAILED_PRECONDITION where it is another; kNone: any
  Path path = Path::kNone;          // once it is done: how its bytes came
  bool destination_lent =
      false;  // the caller's own memory: ends only when no byte can arrive any more
  // At most once, before OnDone, and only where the pieces have a stream: what is queued there from
  // now on finds all of its bytes; or, not OK, it was stopped so late that READs of it stand there.
  // It ends by itself from then on, whatever becomes of its deadline, its payloads, or its link,
  // and what READs it holds is held until OnDone. `path` is known.
  virtual void OnOrdered(const absl::Status& status) { (void)status; }
  virtual void OnDone(const absl::Status& status) = 0;

 protected:
  virtual ~Fetch() = default;

 private:
  friend class Transfers;
  void* state_ = nullptr;
};

// What a reply brought. Views are valid during OnReply only.
struct ReplyView {
  const absl::Status* status = nullptr;  // never null; not OK: body is empty
  absl::Span<const std::byte> body;
  memory::Block body_block;  // body's memory when it was READ into the pools; may be moved out
  PayloadSetRef payloads;    // null when there are none
  MetadataView trailing_metadata;
};

// One call in flight, client side. The object lives until OnReply returns.
class ClientCall {
 public:
  uint32_t method = 0;      // process-wide id of the path, from MethodId()
  int64_t deadline_ns = 0;  // steady clock; 0 = none
  uint64_t reply_bytes_max =
      0;  // a larger body ends the call with RESOURCE_EXHAUSTED; 0 = limits::kMessageBytesMax
  virtual void OnReply(ReplyView& reply) = 0;

 protected:
  virtual ~ClientCall() = default;

 private:
  friend class ClientCalls;
  Link* link_ = nullptr;      // null: the session does not know it, or OnReply is on its way
  void* exchange_ = nullptr;  // what a call keeps beyond its slot
  uint32_t slot_ = ~0u;
};

// Process-wide number of a method path: what frames carry after a link's first use of it. Any
// thread; locks once per path.
uint32_t MethodId(absl::string_view path);
absl::string_view MethodPath(uint32_t id);

// One call being served. The object lives until OnReplyLeasesEnded returns.
class ServerCall {
 public:
  // The client cancelled, its deadline passed, or the link died (then `peer_gone`). At most once,
  // before or after Reply; the call must still be answered with Reply, which then only cleans up.
  virtual void OnCancel(const absl::Status& why, bool peer_gone) = 0;
  // No lease of the reply is left; the session has forgotten the call. After Reply, or as the last
  // thing it does.
  virtual void OnReplyLeasesEnded() = 0;

 protected:
  virtual ~ServerCall() = default;

 private:
  friend class ServerCalls;
  Link* link_ = nullptr;
  uint32_t slot_ = ~0u;
};

// A request as it arrived. Views are valid during OnRequest only.
struct RequestView {
  absl::string_view method;       // path; always known
  void* method_cookie = nullptr;  // what RequestSink::Resolve said for the path
  int64_t deadline_ns = 0;
  absl::Span<const std::byte> body;
  memory::Block body_block;
  PayloadSetRef payloads;
  MetadataView metadata;
};

class RequestSink {
 public:
  // Once per link and path; null = unknown: the session answers UNIMPLEMENTED itself, naming the
  // path.
  virtual void* Resolve(absl::string_view path) = 0;
  // Limits that the session checks before it admits a request's payloads; 0 = the default.
  virtual uint64_t RequestBytesMax(void* method_cookie) = 0;
  // Parses at once. The returned object is the session's until it is answered. A request that does
  // not parse: still return an object, and answer it at once.
  virtual ServerCall* OnRequest(Link& link, RequestView& request) = 0;
  virtual void OnLinkUp(Link& link) = 0;
  // No ServerCall of the link is left when this comes.
  virtual void OnLinkDown(Link& link, const absl::Status& cause) = 0;

 protected:
  ~RequestSink() = default;
};

// What the client end of a link tells its channel.
class LinkOwner {
 public:
  virtual void OnLinkUp(Link& link) = 0;
  // It carries nothing any more, and start no new call here; OnLinkDown follows, late where copies
  // from it stand in streams. At most once.
  virtual void OnLinkClosing(Link& link, const absl::Status& cause) { (void)link, (void)cause; }
  // All of the link's calls have had OnReply(UNAVAILABLE). The link is gone when this returns.
  virtual void OnLinkDown(Link* link, const absl::Status& cause) = 0;
  // The server drains: start no new call here.
  virtual void OnGoAway(Link& link) = 0;

 protected:
  ~LinkOwner() = default;
};

struct LinkInfo {
  std::string transport;  // "shm", "tcp", ...
  std::string why;        // and why not a better one, for people
  std::string peer;       // address
  bool bounds_enforced = false;
  fabric::Revocation revocation = fabric::Revocation::kTable;
  std::string read_ways;          // which READ ways were proved, and what is off with its reason
  uint64_t staged_bytes_max = 0;  // see fabric::Fabric; once the link is up
};

// What this side of a link did since it began.
struct LinkTally {
  uint64_t messages_sent = 0;  // requests or replies
  uint64_t messages_received = 0;
  uint64_t frames_sent = 0;
  uint64_t frames_received = 0;
  uint64_t credit_stalls = 0;  // the peer's window was full
  uint64_t reads = 0;
  uint64_t read_bytes = 0;
  fabric::LinkCounters fabric;
};

class Link {
 public:
  // ---- client side
  // Sends the request, or queues it behind credits and budgets. OnReply is never called inline.
  // `reply_pieces`... are not here: a lent destination is fetched by client/ with Fetch before it
  // completes the call.
  void StartCall(ClientCall& call, const Outgoing& request);
  // Ends the call with `why` as soon as its memory is free (ask, grace, force); OnReply is never
  // called inline.
  void CancelCall(ClientCall& call, const absl::Status& why);

  // ---- server side
  // Answers once. Ends the request's leases first: fetches of its payloads that are still posted
  // are drained before the reply leaves. `status` not OK: the reply has no body and no payloads.
  void Reply(ServerCall& call, const absl::Status& status, const Outgoing& reply);

  // ---- both
  static void StartFetch(PayloadSet& payloads, Fetch& fetch);  // in the seat of the set's reactor
  // For a fetch whose destination is not there yet: OnDone comes when it could not go on, with the
  // reason, or after CancelFetch. `fetch` needs no pieces.
  static void HoldFetch(PayloadSet& payloads, Fetch& fetch);
  static void CancelFetch(Fetch& fetch);          // OnDone(CANCELLED) follows, not inline
  static Engine& EngineOf(PayloadSet& payloads);  // any thread

  const LinkInfo& info() const { return info_; }
  LinkTally tally() const;  // in the seat
  Engine& engine() const { return *engine_; }
  // Largest body that travels inline here.
  uint32_t inline_bytes_max() const;
  void* user = nullptr;  // the owner's or the sink's
  // Finishes politely: GOAWAY, calls end until `deadline_ns`, reply leases end or are revoked, then
  // the link closes.
  void Drain(int64_t deadline_ns);
  // At once: calls end with UNAVAILABLE(`why`).
  void Close(const absl::Status& why);

 protected:
  Link() = default;
  ~Link() = default;
  Engine* engine_ = nullptr;
  LinkInfo info_;
};

}  // namespace verbena::session
