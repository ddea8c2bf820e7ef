#include "rpc/wire/frame.h"

#include <random>
#include <vector>

#include "rpc/wire/control.h"
#include "tests/catch.h"

namespace verbena::wire {
namespace {

using Catch::ContainsSubstring;

std::vector<std::byte> FrameOf(std::vector<std::byte> records, uint32_t granted = 7) {
  std::vector<std::byte> frame(kFrameHeaderBytes + records.size());
  std::copy(records.begin(), records.end(), frame.begin() + kFrameHeaderBytes);
  WriteFrameHeader(frame.data(), static_cast<uint32_t>(frame.size()), granted);
  return frame;
}

std::vector<std::byte> Record(RecordType type, size_t bytes, uint8_t flags = 0, uint16_t says = 0) {
  std::vector<std::byte> record(bytes);
  Store(record.data(),
        RecordHeader{type, flags, static_cast<uint16_t>(says != 0 ? says : bytes), 0});
  return record;
}

TEST_CASE("a frame of nothing but its header is good, and its first word is never zero", "[wire]") {
  std::vector<std::byte> frame = FrameOf({}, 0);
  CHECK(CheckFrame(frame) == FrameError::kOk);
  CHECK(Load<uint64_t>(frame.data()) != 0);
  CHECK(FrameGranted(FrameOf({}, 0xfffffff0)) == 0xfffffff0);
  std::vector<std::byte> largest(65536);
  Store(largest.data() + 8, RecordHeader{RecordType::kPadding, 0, 65528, 0});
  WriteFrameHeader(largest.data(), 65536, 0);
  CHECK(Load<uint64_t>(largest.data()) != 0);
  CHECK(CheckFrame(largest) == FrameError::kOk);
}

TEST_CASE("a frame is refused when its header is short, or says another length", "[wire]") {
  std::vector<std::byte> frame = FrameOf(Record(RecordType::kReply, 16));
  REQUIRE(CheckFrame(frame) == FrameError::kOk);
  CHECK(CheckFrame(absl::MakeConstSpan(frame).first(7)) == FrameError::kNoHeader);
  CHECK(CheckFrame(absl::MakeConstSpan(frame).first(16)) == FrameError::kNoHeader);
  frame[2] = std::byte{0};
  CHECK(CheckFrame(frame) == FrameError::kNoHeader);
}

TEST_CASE("record headers are checked before any is used", "[wire]") {
  struct Case {
    std::vector<std::byte> record;
    FrameError error;
  };
  const std::vector<Case> cases = {
      {Record(RecordType::kReply, 16, 0, 24), FrameError::kRecordTruncated},
      {Record(RecordType::kReply, 16, 0, 12), FrameError::kRecordLength},
      {Record(RecordType::kRequest, 8), FrameError::kRecordLength},
      {Record(RecordType::kRequest, 16, 1), FrameError::kRecordLength},  // padding of a header
      {Record(RecordType::kReply, 8, 7), FrameError::kRecordLength},
      {Record(RecordType::kRelease, 8), FrameError::kRecordLength},
      {Record(static_cast<RecordType>(0xf0), 8), FrameError::kUnknownCritical},
      {Record(static_cast<RecordType>(0x80), 8), FrameError::kUnknownCritical},
      {Record(static_cast<RecordType>(0x70), 8), FrameError::kOk},
      {std::vector<std::byte>(8), FrameError::kRecordLength},  // bytes 0: no endless walk
      {std::vector<std::byte>(4), FrameError::kRecordTruncated},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    INFO("case " << i);
    CHECK(CheckFrame(FrameOf(cases[i].record)) == cases[i].error);
    // Behind a good one it is found as well.
    std::vector<std::byte> both = Record(RecordType::kReply, 16);
    both.insert(both.end(), cases[i].record.begin(), cases[i].record.end());
    CHECK(CheckFrame(FrameOf(both)) == cases[i].error);
  }
}

TEST_CASE("what is wrong with a frame is said with its values and limits", "[wire]") {
  const auto after_good = [](const std::vector<std::byte>& record) {
    std::vector<std::byte> both = Record(RecordType::kReply, 16);
    both.insert(both.end(), record.begin(), record.end());
    return FrameErrorText(FrameOf(both));
  };
  CHECK_THAT(after_good(Record(RecordType::kReply, 16, 0, 24)),
             ContainsSubstring("type 0x82 and 24 bytes passes the end of its frame, 16 are left"));
  CHECK_THAT(after_good(std::vector<std::byte>(4)),
             ContainsSubstring("header of 8 bytes passes the end of its frame, 4 are left"));
  CHECK_THAT(after_good(Record(RecordType::kRequest, 8)),
             ContainsSubstring("type 0x81 and 8 bytes, whose length") && ContainsSubstring("16"));
  CHECK_THAT(after_good(Record(static_cast<RecordType>(0xf0), 8)),
             ContainsSubstring("unknown critical record: a record of type 0xf0"));
  std::vector<std::byte> frame = FrameOf(Record(RecordType::kReply, 16));
  CHECK_THAT(FrameErrorText(absl::MakeConstSpan(frame).first(7)),
             ContainsSubstring("a frame of 7 bytes, at least 8"));
  frame[2] = std::byte{9};
  CHECK_THAT(FrameErrorText(absl::MakeConstSpan(frame).first(16)),
             ContainsSubstring("a frame of 16 bytes says 24") &&
                 ContainsSubstring("the mark 0x9 for 0x56"));
}

TEST_CASE("random bytes never make the walk leave the frame", "[wire]") {
  std::mt19937 random(GENERATE(1u, 2u, 3u));
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> records(random() % 96);
    for (std::byte& byte : records) byte = static_cast<std::byte>(random() % 4 == 0 ? random() : 0);
    const std::vector<std::byte> frame = FrameOf(records);
    if (CheckFrame(frame) != FrameError::kOk) {
      REQUIRE(FrameErrorText(frame) != "no error");
      continue;
    }
    size_t walked = kFrameHeaderBytes;
    for (FrameCursor cursor(frame); !cursor.done();) {
      const RecordHeader header = cursor.header();
      REQUIRE(header.bytes >= kRecordHeaderBytes);
      walked += header.bytes;
      REQUIRE(walked <= frame.size());
      cursor.Next(header);
    }
    REQUIRE(walked == frame.size());
  }
}

TEST_CASE("control records come back as they were written", "[wire]") {
  std::vector<std::byte> method(MethodRecordBytes("/a.B/Cd"));
  WriteMethod(3, "/a.B/Cd", method.data());
  CHECK(CheckFrame(FrameOf(method)) == FrameError::kOk);
  CHECK(*ReadMethodPath(method) == "/a.B/Cd");
  method[1] = std::byte{8};
  CHECK_FALSE(ReadMethodPath(method).ok());

  const LaneRecord lane{2, true, 9, 0, "blob!"};
  std::vector<std::byte> offer(LaneRecordBytes(lane));
  WriteLane(RecordType::kLaneOffer, lane, offer.data());
  const absl::StatusOr<LaneRecord> read = ReadLane(offer);
  REQUIRE(read.ok());
  CHECK(read->index == 2);
  CHECK(read->sender_owns);
  CHECK(read->generation == 9);
  CHECK(read->blob == "blob!");
  Store(offer.data() + 12, uint32_t{17});  // a longer blob than there is
  CHECK_FALSE(ReadLane(offer).ok());
  offer[4] = std::byte{limits::kLanesMax};
  CHECK_FALSE(ReadLane(offer).ok());

  LeaseKeys keys{1, 5, {{77, {1, 2, 3, 4}}, {78, {5, 6, 7, 8}}}};
  std::vector<std::byte> record(LeaseKeysBytes(2));
  WriteLeaseKeys(keys, record.data());
  const absl::StatusOr<LeaseKeys> got = ReadLeaseKeys(record);
  REQUIRE(got.ok());
  CHECK(got->generation == 5);
  CHECK(got->keys[1].lease == 78);
  CHECK(got->keys[1].key == Key{5, 6, 7, 8});
  Store(record.data() + 12, uint32_t{3});
  CHECK_FALSE(ReadLeaseKeys(record).ok());
}

}  // namespace
}  // namespace verbena::wire
