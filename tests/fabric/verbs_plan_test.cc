// The pure parts of the verbs fabric: queue sizes, offers, keys, names of work requests and of
// ends.
#include <memory>
#include <string>

#include "rpc/base/limits.h"
#include "rpc/fabric/verbs/ends.h"
#include "rpc/fabric/verbs/key.h"
#include "rpc/fabric/verbs/offer.h"
#include "rpc/fabric/verbs/sizes.h"
#include "rpc/fabric/verbs/work_id.h"
#include "tests/catch.h"

namespace verbena::fabric::verbs {
namespace {

DeviceLimits Large() {
  DeviceLimits limits;
  limits.qp_wr_max = 32768;
  limits.cq_entries_max = 4 << 20;
  limits.srq_max = 1 << 16;
  limits.srq_wr_max = 32768;
  limits.sge_max = 30;
  limits.sge_rd_max = 30;
  limits.read_depth_initiator = 128;
  limits.read_depth_responder = 16;
  limits.qp_max = 1 << 17;
  return limits;
}

TEST_CASE("queues hold whatever may complete at once", "[verbs][sizes]") {
  for (const uint32_t cq_entries : {700u, 32767u, 4u << 20}) {
    for (const uint32_t qp_max : {5u, 1000u, 1u << 17}) {
      for (const uint32_t srq_wr_max : {33u, 1000u, 32768u}) {
        DeviceLimits limits = Large();
        limits.cq_entries_max = cq_entries;
        limits.qp_max = qp_max;
        limits.srq_wr_max = srq_wr_max;
        INFO("CQ " << cq_entries << " QP " << qp_max << " SRQ " << srq_wr_max);
        const absl::StatusOr<Sizes> sizes = PlanSizes(limits, 1024);
        REQUIRE(sizes.ok());
        REQUIRE(sizes->links_max >= 1);
        REQUIRE(sizes->links_max <= 1024);
        // Every receive of every link is posted, and a queue of sends may be flushed whole.
        REQUIRE(sizes->receives_per_link == limits::kVerbsWindowFrames + 1);
        REQUIRE(sizes->srq_entries == sizes->links_max * sizes->receives_per_link + kReceivesSpare);
        REQUIRE(sizes->control_cq_entries >=
                sizes->srq_entries + sizes->links_max * sizes->control_work);
        REQUIRE(sizes->bulk_cq_entries >= 4 * sizes->links_max * sizes->bulk_work);
        REQUIRE(sizes->control_cq_entries <= cq_entries);
        REQUIRE(sizes->bulk_cq_entries <= cq_entries);
        REQUIRE(sizes->srq_entries <= srq_wr_max);
        REQUIRE(5 * sizes->links_max <= qp_max);
      }
    }
  }
}

TEST_CASE("a device without room for a link is refused by name", "[verbs][sizes]") {
  DeviceLimits limits = Large();
  limits.cq_entries_max = 16;
  REQUIRE(PlanSizes(limits, 1024).status().code() == absl::StatusCode::kResourceExhausted);
  REQUIRE(std::string(PlanSizes(limits, 1024).status().message()).find("CQs of 16 entries") !=
          std::string::npos);
  limits = Large();
  limits.qp_max = 4;
  REQUIRE_FALSE(PlanSizes(limits, 1024).ok());
  limits = Large();
  limits.read_depth_responder = 0;
  REQUIRE_FALSE(PlanSizes(limits, 1024).ok());
  limits = Large();
  limits.qp_wr_max = 8;
  REQUIRE_FALSE(PlanSizes(limits, 1024).ok());
  // One without SRQs has receives for each queue pair.
  limits = Large();
  limits.srq_max = 0;
  REQUIRE(PlanSizes(limits, 1024)->srq == false);
  REQUIRE(PlanSizes(limits, 1024)->srq_entries == 0);
  // So has one whose SRQs hold no window and the spare receives.
  limits = Large();
  limits.srq_wr_max = verbena::limits::kVerbsWindowFrames + kReceivesSpare;
  REQUIRE(PlanSizes(limits, 1024)->srq == false);
}

QueuePairEnd AnEnd() {
  QueuePairEnd end;
  end.qp_number = 0xabcdef;
  end.psn = 0x123456;
  for (size_t i = 0; i < end.gid.size(); ++i) end.gid[i] = static_cast<uint8_t>(i + 1);
  end.lid = 0xbeef;
  end.mtu = 5;
  end.ethernet = true;
  end.roce_version = 2;
  end.read_depth_out = 16;
  end.read_depth_in = 8;
  return end;
}

TEST_CASE("offers say what was put in", "[verbs][offer]") {
  const absl::StatusOr<LinkOffer> link = ParseLinkOffer(LinkOfferBlob({8192, 16, AnEnd()}));
  REQUIRE(link.ok());
  REQUIRE(link->frame_bytes == 8192);
  REQUIRE(link->window_frames == 16);
  REQUIRE(link->end == AnEnd());
  const absl::StatusOr<LaneOffer> lane = ParseLaneOffer(LaneOfferBlob({3, 77, AnEnd()}));
  REQUIRE(lane.ok());
  REQUIRE(lane->index == 3);
  REQUIRE(lane->generation == 77);
  REQUIRE(lane->end == AnEnd());
  QueuePairEnd infiniband = AnEnd();
  infiniband.ethernet = false;
  infiniband.roce_version = 0;
  infiniband.grh = true;
  REQUIRE(ParseLinkOffer(LinkOfferBlob({8192, 16, infiniband}))->end == infiniband);
}

TEST_CASE("offers of other lengths, magics or values are refused, naming them", "[verbs][offer]") {
  const std::string good = LinkOfferBlob({8192, 16, AnEnd()});
  const auto message = [](const std::string& blob) {
    return std::string(ParseLinkOffer(blob).status().message());
  };
  REQUIRE_FALSE(ParseLinkOffer("").ok());
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    REQUIRE_FALSE(ParseLinkOffer(good.substr(0, bytes)).ok());
  }
  REQUIRE(message(good + "x").find("bytes 57") != std::string::npos);
  REQUIRE_FALSE(ParseLinkOffer(LaneOfferBlob({0, 1, AnEnd()})).ok());
  REQUIRE_FALSE(ParseLaneOffer(good).ok());
  const auto with = [&](size_t at, uint8_t value) {
    std::string blob = good;
    blob[at] = static_cast<char>(value);
    return blob;
  };
  REQUIRE(message(with(16 + 3, 1)).find("queue pair") != std::string::npos);     // 25 bits
  REQUIRE(message(with(16 + 7, 1)).find("packet number") != std::string::npos);  // 25 bits
  REQUIRE(message(with(16 + 26, 0)).find("MTU 0") != std::string::npos);
  REQUIRE(message(with(16 + 26, 6)).find("MTU 6") != std::string::npos);
  for (const int kind : {0x01, 0x20, 0x31, 0x23, 0x04, 0x22}) {
    REQUIRE(message(with(16 + 27, static_cast<uint8_t>(kind))).find("link layer") !=
            std::string::npos);
  }
  QueuePairEnd nobody = AnEnd();
  nobody.qp_number = 0;
  REQUIRE_FALSE(ParseLinkOffer(LinkOfferBlob({8192, 16, nobody})).ok());
}

TEST_CASE("a key with any bit changed is no key", "[verbs][key]") {
  KeyFields fields;
  fields.address = 0x7f00deadbeef;
  fields.bytes = 123456789;
  fields.rkey = 0xfedcba98;
  fields.lane_generation = 7;
  const RemoteKey key = MakeKey(fields);
  const std::optional<KeyFields> read = ReadKey(key);
  REQUIRE(read);
  REQUIRE(read->address == fields.address);
  REQUIRE(read->bytes == fields.bytes);
  REQUIRE(read->rkey == fields.rkey);
  REQUIRE(read->lane_generation == 7);
  for (size_t word = 0; word < key.words.size(); ++word) {
    for (int bit = 0; bit < 64; ++bit) {
      RemoteKey other = key;
      other.words[word] ^= uint64_t{1} << bit;
      INFO("word " << word << " bit " << bit);
      REQUIRE_FALSE(ReadKey(other));
    }
  }
  REQUIRE_FALSE(ReadKey(RemoteKey()));
}

TEST_CASE("a work request's name says its kind, end and number", "[verbs][ends]") {
  for (const WorkKind kind : {WorkKind::kReceive, WorkKind::kSend, WorkKind::kRead, WorkKind::kOwn,
                              WorkKind::kBye, WorkKind::kMarker}) {
    for (const uint32_t end : {0u, 1u, 0xffffffu}) {
      for (const uint32_t number : {0u, 5u, ~0u}) {
        const WorkId id = WorkId::FromWord(WorkId{kind, end, number}.word());
        REQUIRE(id.kind == kind);
        REQUIRE(id.end == end);
        REQUIRE(id.number == number);
      }
    }
  }
}

TEST_CASE("the name of an end that is gone finds nothing, though its place is used again",
          "[verbs][ends]") {
  Ends ends;
  const auto add = [&] {
    return ends.Add(std::make_unique<ReaderEnd>(LinkId{1}, Lane{}, OwnedPair(), 8));
  };
  const uint32_t other = add();
  uint32_t last = add();
  for (int i = 0; i < 1000; ++i) {
    REQUIRE(ends.Find(last) != nullptr);
    REQUIRE(ends.Find(last)->number == last);
    REQUIRE(ends.Remove(last) != nullptr);
    const uint32_t next = add();
    REQUIRE(next != last);
    REQUIRE(ends.Find(last) == nullptr);
    last = next;
  }
  REQUIRE(ends.Find(other) != nullptr);
  REQUIRE(ends.Find(0xfffff) == nullptr);
}

}  // namespace
}  // namespace verbena::fabric::verbs
