#pragma once
// Channel: a client's way to one server. Shared, thread-safe; stubs hold it. It connects at its
// first call, over the best transport that both sides can prove, and reconnects with back-off after
// the peer was lost.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "verbena/call.h"
#include "verbena/service.h"

namespace verbena {

class ChannelOptions {
 public:
  ChannelOptions() = default;

  // Only this transport ("shm", "verbs", "tcp"): a channel without it fails its calls and says
  // why: FAILED_PRECONDITION, or RESOURCE_EXHAUSTED where the transport has its maximum of links.
  ChannelOptions& set_require_transport(absl::string_view name) & {
    transports_ = {std::string(name)};
    return *this;
  }
  ChannelOptions set_require_transport(absl::string_view name) && {
    return std::move(set_require_transport(name));
  }
  // For calls without a deadline of their own. Default: none, as in gRPC; set one.
  ChannelOptions& set_default_timeout(absl::Duration timeout) & {
    default_timeout_ = timeout;
    return *this;
  }
  ChannelOptions set_default_timeout(absl::Duration timeout) && {
    return std::move(set_default_timeout(timeout));
  }
  // Of one attempt, all transports together; what runs out is followed by the back-off. More than
  // zero. Default: 20 s.
  ChannelOptions& set_connect_timeout(absl::Duration timeout) & {
    connect_timeout_ = timeout;
    return *this;
  }
  ChannelOptions set_connect_timeout(absl::Duration timeout) && {
    return std::move(set_connect_timeout(timeout));
  }
  // Between attempts: the first wait, times 1.6 each, up to the second, with a jitter of 20 %. More
  // than zero. Default: 100 ms, 10 s.
  ChannelOptions& set_backoff(absl::Duration first, absl::Duration longest) & {
    backoff_first_ = first;
    backoff_longest_ = longest;
    return *this;
  }
  ChannelOptions set_backoff(absl::Duration first, absl::Duration longest) && {
    return std::move(set_backoff(first, longest));
  }
  // Largest reply that is accepted, tensors not counted; larger ends the call with
  // RESOURCE_EXHAUSTED. 0, the default: 64 MiB, and servers send no more either: a method that
  // answers more says so in its .proto (verbena.v1.reply_bytes_max), which comes before this. Below
  // 2 GiB.
  ChannelOptions& set_reply_bytes_max(uint64_t bytes) & {
    reply_bytes_max_ = bytes;
    return *this;
  }
  ChannelOptions set_reply_bytes_max(uint64_t bytes) && {
    return std::move(set_reply_bytes_max(bytes));
  }

  const std::vector<std::string>& transports() const { return transports_; }
  absl::Duration default_timeout() const { return default_timeout_; }
  absl::Duration connect_timeout() const { return connect_timeout_; }
  absl::Duration backoff_first() const { return backoff_first_; }
  absl::Duration backoff_longest() const { return backoff_longest_; }
  uint64_t reply_bytes_max() const { return reply_bytes_max_; }

 private:
  std::vector<std::string> transports_;
  absl::Duration default_timeout_ = absl::InfiniteDuration();
  absl::Duration connect_timeout_ = absl::Seconds(20);
  absl::Duration backoff_first_ = absl::Milliseconds(100);
  absl::Duration backoff_longest_ = absl::Seconds(10);
  uint64_t reply_bytes_max_ = 0;
};

// What this side of a connection did since it was made; for statistics. Messages per frame, which
// over verbs is messages per SEND, are messages_sent / frames_sent.
struct ConnectionCounters {
  uint64_t messages_sent = 0;      // requests
  uint64_t messages_received = 0;  // replies
  uint64_t frames_sent = 0;        // what carried them, with what the library itself says
  uint64_t frames_received = 0;
  uint64_t credit_stalls = 0;  // times that the server's receive window was full
  uint64_t reads = 0;          // chunks of payloads
  uint64_t read_bytes = 0;

  // Counted over verbs only, else 0. A frame is a SEND. What only the NIC counts, of all processes,
  // is in `verbena doctor --json`, for each port: "rnr" and "retries", and by its own names
  // "counters".
  uint64_t doorbells = 0;       // SENDs posted at once
  uint64_t send_ticks = 0;      // turns of the reactor in which there was one
  uint64_t work_reads = 0;      // READs as the NIC does them
  uint64_t read_doorbells = 0;  // READs posted at once
  uint64_t send_waits = 0;      // no buffer was free, or the send queue was full
  uint64_t lanes_broken = 0;    // queue pairs for READs that were replaced
  uint64_t window_leases = 0;   // of this side's memory, by how they are taken back
  uint64_t registered_leases = 0;
  uint64_t lane_leases = 0;
};

struct ChannelStatus {
  enum class State { kIdle, kConnecting, kReady, kBackoff };
  State state = State::kIdle;
  std::string transport;  // when ready
  std::string why;        // why this transport and not a better one; or why there is no connection
  std::string peer;
  // Whether a peer that keeps to nothing still reads no byte outside leases.
  bool bounds_enforced = false;
  // How leases are taken back by force. Over shm "word": the owner changes one in shared memory,
  // which readers look at before and after they copy. Over tcp "table": of the owner, who sends
  // only what stands in it. Over verbs "window" or, where the NIC has none, "lease-mr" (a
  // registration each) or "lane" (the queue pair it is read through ends), and then keys are
  // capabilities: any process that this one talks to over that NIC, and that learns or guesses key
  // and address of another's lease, reads it until it ends. A wrong guess ends the guesser's lane.
  // Let such processes trust each other.
  std::string revocation;
  std::string read_ways;  // how READs reach the peer's memory, and what is off with its reason
  ConnectionCounters counters;
};

namespace internal {
class ChannelCore;  // rpc/client/channel_core.h
}

class Channel {
 public:
  // "host:port", "dns:///host:port" or "unix:/path". Never null, never blocks: a bad target, or an
  // option out of range, fails its calls with INVALID_ARGUMENT. Any thread.
  static std::shared_ptr<Channel> Create(absl::string_view target,
                                         const ChannelOptions& options = {});
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  const std::string& target() const;
  // Any thread; blocks for a tick of the channel's reactor, except on that. On the thread of
  // another reactor nothing is known: kIdle, and `why` says so.
  ChannelStatus status() const;
  // Connects if need be and waits: OK when ready, else why not, DEADLINE_EXCEEDED after `timeout`.
  // Blocks. Any thread but a reactor's: FAILED_PRECONDITION.
  absl::Status WaitUntilReady(absl::Duration timeout);

  internal::ChannelCore& core() const { return *core_; }

 private:
  explicit Channel(internal::ChannelCore* core) : core_(core) {}
  internal::ChannelCore* core_;  // lives until its calls have ended
};

namespace internal {

Operation* StartUnary(Channel& channel, const MethodInfo& method, const void* request,
                      const CallOptions& options);

// Inside each generated stub: a value, one shared pointer. Any thread.
class StubCore {
 public:
  explicit StubCore(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}

  template <class Request, class Reply>
  Call<Reply> Unary(const MethodInfo& method, const Request& request,
                    const CallOptions& options) const {
    return Call<Reply>(StartUnary(*channel_, method, &request, options));
  }
  template <class Stream, class Request>
  Stream StartReading(const MethodInfo&, const Request&, const CallOptions&) const {
    return Stream(StreamRef::Unimplemented());
  }
  template <class Stream>
  Stream StartStream(const MethodInfo&, const CallOptions&) const {
    return Stream(StreamRef::Unimplemented());
  }

 private:
  std::shared_ptr<Channel> channel_;
};

}  // namespace internal
}  // namespace verbena
