#pragma once
// Every named maximum of the library, one section per room. Each says what happens when it is too
// low.
#include <cstddef>
#include <cstdint>

namespace verbena::limits {

// ---- links
// A frame on shm and verbs. Larger messages go by READ; too low costs round trips for middling
// messages.
inline constexpr uint32_t kSegmentBytes = 8 * 1024;
// A frame on tcp, where a READ costs a round trip of system calls.
inline constexpr uint32_t kTcpSegmentBytes = 64 * 1024;
// Links per reactor. More are refused at accept with RESOURCE_EXHAUSTED.
inline constexpr uint32_t kLinksPerReactorMax = 16 * 1024;
// Calls that a client may have open on one link. More wait at the client.
inline constexpr uint32_t kOpenCallsMax = 1024;
// Serialised metadata of one call, as gRPC's soft limit. More is RESOURCE_EXHAUSTED.
inline constexpr uint32_t kMetadataBytesMax = 8 * 1024;
// A message without its tensors, unless the server or the method says otherwise; gRPC's is 4 MiB.
inline constexpr uint64_t kMessageBytesMax = 64ull << 20;
// What it may say: protobuf counts a message's bytes in an int.
inline constexpr uint64_t kMessageBytesHighest = INT32_MAX;
// Pieces of one payload (an allocation may consist of several). More is refused by Attach.
inline constexpr uint32_t kPiecesMax = 64;
// Payloads beside one message. More is refused by Attach, and ends the call at the receiver.
inline constexpr uint32_t kPayloadsMax = 4096;
// Bulk lanes of one link and direction that the payload table has room for; one is used so far.
inline constexpr uint32_t kLanesMax = 4;
// Local pieces of one fetch. More is refused: gather a larger range instead.
inline constexpr uint32_t kFetchPiecesMax = 4096;
// Metadata, status and payload table of one message, when they travel by READ because they pass a
// segment.
inline constexpr uint64_t kMessageHeadBytesMax = 1 << 20;
// READs that one reactor has posted, over all its links. Too low starves links when many fetch at
// once.
inline constexpr uint32_t kReadsInFlightMax = 1024;
// Leases of one reactor's memory at one time. More wait for others to end.
inline constexpr uint32_t kLeasesMax = 1 << 20;
// Rebuilds of a broken bulk lane within kLaneRebuildWindowNs before it stays down.
inline constexpr uint32_t kLaneRebuildsMax = 3;
inline constexpr int64_t kLaneRebuildWindowNs = 10'000'000'000;
// Bulk lanes that a peer may offer within kLaneRebuildWindowNs. More end the link: each takes the
// setup thread's time. Too low: offers that piled up while this process stood still end honest
// ones.
inline constexpr uint32_t kLaneOffersMax = 4 * (kLaneRebuildsMax + 1);
// Paths that one link may name. More end the link: no honest client has so many methods.
inline constexpr uint32_t kMethodsPerLinkMax = 4096;
// A method's path, which the server keeps as long as the link. Longer ends the link at the server,
// and the call at an honest client: 4,096 of the largest frames would be 256 MiB.
inline constexpr size_t kMethodPathBytesMax = 1024;

// ---- tcp
// Send buffers of a segment each that one link may hold, and all links of a reactor together. A
// peer that does not read blocks its own; fewer, and a burst waits for the socket; more, and the
// backlog of a slow peer grows.
inline constexpr uint32_t kTcpFramesPerLinkMax = 32;
inline constexpr uint32_t kTcpFramesMax = 1024;
static_assert(kTcpFramesPerLinkMax <= kTcpFramesMax / 8);

// ---- verbs
// Receives that each link may have under way to this side, of a segment each: 16 x 8 KiB cover 200
// Gb/s x 5 us. The same in every process that speaks this version.
inline constexpr uint32_t kVerbsWindowFrames = 16;
// Links per reactor; the device may allow fewer. More are refused at accept with
// RESOURCE_EXHAUSTED.
inline constexpr uint32_t kVerbsLinksMax = 1024;
// Work requests of a control lane: a window under way, another that waits for its completions, the
// link's last word and the marker of its end. Fewer, and a burst waits for acknowledgements.
inline constexpr uint32_t kVerbsControlWorkMax = 2 * kVerbsWindowFrames + 8;
static_assert(kVerbsControlWorkMax >= kVerbsWindowFrames + 2);
// Work requests of a bulk lane. The rest waits in the fabric.
inline constexpr uint32_t kVerbsBulkWorkMax = 32;
// Send buffers of a segment each that one reactor's links share. Too low: frames wait for
// acknowledgements of others.
inline constexpr uint32_t kVerbsSendBuffers = 256;
// Bytes of READs that one reactor has posted at its NIC. Too low leaves the wire idle; higher makes
// small READs wait behind large ones, and incast worse.
inline constexpr uint64_t kVerbsReadBytesMax = 8 << 20;

// ---- tensors
// Rows of a slice below this are not READ one by one: what encloses them is, and the CPU, or the
// device that fetches, picks them out.
inline constexpr uint64_t kGatherBelowBytes = 4 << 10;
// Rows of a slice that a device picks out, with copies of its own. More is refused with
// INVALID_ARGUMENT.
inline constexpr size_t kDeviceRowsMax = 1 << 16;
// READs that one Fetch of a slice may take. More is refused with INVALID_ARGUMENT.
inline constexpr size_t kFetchReadsMax = 4096;

// ---- set-up
// Handshakes of one listener at a time; more wait in the kernel's backlog. Too low: silent peers,
// which hold theirs until the handshake deadline, keep others out.
inline constexpr uint32_t kHandshakesMax = 256;

// ---- memory
// Copies queued in one engine; more wait in the session.
inline constexpr uint32_t kCopiesInFlightMax = 64;

}  // namespace verbena::limits
