#pragma once
// The contract suite of fabric.h: one set of tests, run on every fabric. A Subject says how to make
// two fabrics that reach each other; Pair joins them, polls both from one thread, and records what
// they report. A subject that cannot run here has a reason, and is skipped with it.
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rpc/fabric/fabric.h"
#include "rpc/memory/device.h"
#include "tests/catch.h"

namespace verbena::contract {

// What one end reported, in order of arrival.
class Recorder final : public fabric::EventSink {
 public:
  struct Leased {
    Error error = Error::kOk;
    fabric::RemoteKey key;
  };

  void OnFrame(LinkId link, absl::Span<const std::byte> frame) override;
  void OnSendable(LinkId link) override { ++sendable[link]; }
  void OnLeased(LeaseSlot slot, Error error, const fabric::RemoteKey& key) override;
  void OnRevoked(LeaseSlot slot) override { ++revoked[slot.word()]; }
  void OnReadDone(ReadSlot slot, Error error) override;
  void OnReadPath(ReadSlot slot, Path path) override { paths[slot.word()] = path; }
  void OnReadOrdered(ReadSlot slot) override { ++ordered[slot.word()]; }
  void OnLaneDown(LinkId link, Lane lane, Error cause) override;
  void OnLinkEnding(LinkId link, const absl::Status& cause) override;
  void OnLinkDown(LinkId link, const absl::Status& cause) override;

  size_t frames_of(LinkId link) { return frames[link].size(); }

  std::map<LinkId, std::vector<std::vector<std::byte>>> frames;
  bool keep_frames = true;  // false: only counted
  uint64_t frame_count = 0;
  std::map<LinkId, int> sendable;
  std::map<uint64_t, std::vector<Leased>> leased;
  std::map<uint64_t, int> revoked;
  std::map<uint64_t, std::vector<Error>> reads;
  std::map<uint64_t, Path> paths;
  std::map<uint64_t, int> ordered;
  std::map<LinkId, std::vector<Lane>> lanes_down;
  std::map<LinkId, std::vector<absl::Status>> ending, down;
  int after_down = 0;  // events of a link after its LinkDown
  size_t reads_after_lane_down = 0;
  std::function<void(LinkId, absl::Span<const std::byte>)> on_frame;

 private:
  void CheckAlive(LinkId link) {
    if (!down[link].empty()) ++after_down;
  }
};

struct Subject {
  std::string name;
  std::string skip;  // why it cannot run here
  // Two fabrics (client's end, server's end); `keep` holds whatever must outlive them.
  std::function<void(std::unique_ptr<fabric::Fabric>& client,
                     std::unique_ptr<fabric::Fabric>& server, std::shared_ptr<void>& keep)>
      make;
  bool one_host = false;       // links need a side socket
  bool two_processes = false;  // its ends may be in different processes
  bool one_thread = false;     // its ends may not be polled by different threads
};
// Defined by the binary: which fabrics it has.
const std::vector<Subject>& Subjects();

// Memory for leases and READs, of the kind that the pools have.
memory::RegionRef MakeSlab(size_t bytes);
memory::RegionRef MakeForeign(size_t bytes);

// Connected sockets of one link: a TCP pair over loopback and, if asked, a unix pair.
struct SocketPair {
  fabric::Sockets client, server;
};
SocketPair MakeSockets(bool side);
void CloseSockets(fabric::Sockets& sockets);

// One end of a link as the session would set it up, step by step, for tests that go wrong in the
// middle.
absl::Status JoinLink(fabric::Fabric& client, LinkId client_link, fabric::Fabric& server,
                      LinkId server_link, SocketPair& sockets);

class Pair {
 public:
  explicit Pair(const Subject& subject);
  ~Pair();

  // Sets a link up and starts it at both ends; its id is the same at both.
  void Connect(LinkId link);
  // Opens bulk lane `index` so that `reader` READs from the other end. Nothing to do where lanes
  // always exist.
  void OpenLane(LinkId link, uint8_t index, fabric::Fabric& reader, uint32_t generation = 1);

  // Polls both ends until `done`, for 10 s x kSlowdown at most. Returns done().
  bool Until(absl::FunctionRef<bool()> done);
  // Polls both ends for so long.
  void Settle(std::chrono::milliseconds time = std::chrono::milliseconds(20));
  void PollOnce();

  fabric::Fabric& client() { return *client_; }
  fabric::Fabric& server() { return *server_; }
  // The process behind one end is gone, as far as one process can show it.
  void DropClient() { client_.reset(); }
  void DropServer() { server_.reset(); }

  Recorder client_events, server_events;

 private:
  const Subject& subject_;
  std::shared_ptr<void> keep_;
  std::unique_ptr<fabric::Fabric> client_, server_;
  std::vector<fabric::Sockets> sockets_;
};

// Sends one frame whose bytes follow from `seed`. False: no buffer was free.
bool SendFrame(fabric::Fabric& fabric, LinkId link, uint32_t bytes, uint32_t seed);
// Whether `frame` is what SendFrame made of (bytes, seed).
bool FrameIs(absl::Span<const std::byte> frame, uint32_t bytes, uint32_t seed);

void Fill(std::byte* data, size_t bytes, uint32_t seed);
bool Filled(const std::byte* data, size_t bytes, uint32_t seed);

// Leases [offset, offset + bytes) of `region` to the peer of `link` and returns the key.
fabric::RemoteKey LeaseNow(Pair& pair, fabric::Fabric& owner, Recorder& events, LeaseSlot slot,
                           LinkId link, Lane lane, const memory::RegionRef& region, size_t offset,
                           size_t bytes);

}  // namespace verbena::contract

// Every contract test starts with this: `subject` is the fabric it runs on.
#define VERBENA_CONTRACT_SUBJECT(subject)                                      \
  const size_t subject_index =                                                 \
      GENERATE_COPY(range(size_t{0}, ::verbena::contract::Subjects().size())); \
  const auto& subject = ::verbena::contract::Subjects()[subject_index];        \
  INFO("fabric: " << subject.name);                                            \
  if (!subject.skip.empty()) {                                                 \
    WARN("skipped on " << subject.name << ": " << subject.skip);               \
    return;                                                                    \
  }
