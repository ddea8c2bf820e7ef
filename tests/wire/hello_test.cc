#include "rpc/wire/hello.h"

#include <random>

#include "tests/catch.h"

namespace verbena::wire {
namespace {

std::string BodyOf(const std::string& message) { return message.substr(kHelloHeaderBytes); }

std::string Record(uint16_t tag, uint16_t flags, const std::string& bytes) {
  std::string record;
  for (uint32_t v : {uint32_t{tag} | uint32_t{flags} << 16, static_cast<uint32_t>(bytes.size())}) {
    for (int i = 0; i < 4; ++i) record.push_back(static_cast<char>(v >> (8 * i)));
  }
  return record + bytes;
}

Hello Sample() {
  Hello hello;
  hello.version = 3;
  hello.version_oldest = 2;
  hello.incarnation.fill(7);
  hello.open_calls_max = 1024;
  hello.transports = {{"shm", ""}, {"tcp", "switched off"}};
  hello.side_path = "/run/x";
  hello.side_abstract = "x";
  hello.side_token.fill(1);
  return hello;
}

}  // namespace

TEST_CASE("HELLO_REPLY says what it was given", "[wire][hello]") {
  const std::string message = EncodeHello(HelloType::kHelloReply, Sample());
  const auto header = DecodeHelloHeader(message.substr(0, kHelloHeaderBytes));
  REQUIRE(header.ok());
  CHECK(header->type == HelloType::kHelloReply);
  CHECK(header->body_bytes == message.size() - kHelloHeaderBytes);
  const auto hello = DecodeHello(BodyOf(message));
  REQUIRE(hello.ok());
  CHECK(hello->version == 3);
  CHECK(hello->version_oldest == 2);
  CHECK(hello->incarnation == Sample().incarnation);
  CHECK(hello->open_calls_max == 1024);
  REQUIRE(hello->transports.size() == 2);
  CHECK(hello->transports[0].name == "shm");
  CHECK(hello->transports[1].reason == "switched off");
  CHECK(hello->side_path == "/run/x");
  CHECK(hello->side_abstract == "x");
  CHECK(hello->side_token == Sample().side_token);
}

TEST_CASE("OPEN, OPEN_REPLY and REFUSE say what they were given", "[wire][hello]") {
  OpenMessage open;
  open.transport = "shm";
  open.segment_bytes = 8192;
  open.descriptors = 2;
  open.blob = std::string("\0binary\xff", 8);
  const auto decoded = DecodeOpen(BodyOf(EncodeOpen(HelloType::kOpen, open)));
  REQUIRE(decoded.ok());
  CHECK(decoded->transport == "shm");
  CHECK(decoded->segment_bytes == 8192);
  CHECK(decoded->descriptors == 2);
  CHECK(decoded->blob == open.blob);
  CHECK(decoded->status.ok());
  open.status = absl::PermissionDeniedError("another user");
  const auto refused = DecodeOpen(BodyOf(EncodeOpen(HelloType::kOpenReply, open)));
  REQUIRE(refused.ok());
  CHECK(refused->status.code() == absl::StatusCode::kPermissionDenied);
  CHECK(refused->status.message() == "another user");

  absl::Status refusal;
  CHECK(DecodeRefuse(BodyOf(EncodeRefuse(absl::ResourceExhaustedError("full"))), refusal).ok());
  CHECK(refusal.code() == absl::StatusCode::kResourceExhausted);
  CHECK(refusal.message() == "full");
  // A refusal that says OK is a refusal.
  CHECK(DecodeRefuse(BodyOf(EncodeRefuse(absl::OkStatus())), refusal).ok());
  CHECK(refusal.code() == absl::StatusCode::kUnknown);
}

TEST_CASE("unknown records are skipped unless they are critical", "[wire][hello]") {
  const std::string body = BodyOf(EncodeHello(HelloType::kHello, Sample()));
  CHECK(DecodeHello(body + Record(999, 0, "new feature")).ok());
  const auto refused = DecodeHello(body + Record(999, 1, "new feature"));
  CHECK(refused.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(refused.status().message().find("999") != absl::string_view::npos);
}

TEST_CASE("headers that are no header are refused, each naming why", "[wire][hello]") {
  const std::string good = EncodeHello(HelloType::kHello, Sample()).substr(0, kHelloHeaderBytes);
  CHECK(DecodeHelloHeader(good).ok());
  CHECK_FALSE(DecodeHelloHeader(good.substr(1)).ok());
  std::string http = "GET / HTTP/1";
  CHECK(DecodeHelloHeader(http).status().message().find("GET ") != absl::string_view::npos);
  std::string type = good;
  type[4] = 77;
  CHECK(DecodeHelloHeader(type).status().message().find("77") != absl::string_view::npos);
  std::string large = good;
  large[10] = 2;  // 128 KiB and more
  CHECK(DecodeHelloHeader(large).status().message().find("65536") != absl::string_view::npos);
  CHECK(static_cast<uint8_t>(good[0]) != kTlsFirstByte);
}

TEST_CASE("values beyond their limits are refused", "[wire][hello]") {
  const std::string version = Record(1, 0, std::string("\1\0\1\0", 4));
  CHECK(DecodeHello(version).ok());
  CHECK_FALSE(DecodeHello("").ok());                                        // no version
  CHECK_FALSE(DecodeHello(Record(1, 0, std::string("\1\0\2\0", 4))).ok());  // oldest above newest
  CHECK_FALSE(DecodeHello(Record(1, 0, "x")).ok());
  CHECK_FALSE(DecodeHello(version + Record(2, 0, "short token")).ok());
  CHECK_FALSE(DecodeHello(version + Record(3, 0, "12345")).ok());
  CHECK_FALSE(DecodeHello(version + Record(4, 0, "")).ok());  // a transport without a name
  CHECK_FALSE(DecodeHello(version + Record(5, 0, std::string(108, 'a'))).ok());
  std::string many = version;
  for (uint32_t i = 0; i <= kHelloTransportsMax; ++i) many += Record(4, 0, "t");
  CHECK_FALSE(DecodeHello(many).ok());
  std::string records = version;
  for (int i = 0; i < 200; ++i) records += Record(500, 0, "");
  CHECK_FALSE(DecodeHello(records).ok());
  CHECK_FALSE(DecodeOpen(Record(11, 0, std::string("\11\0\0\0", 4))).ok());  // 9 descriptors
  CHECK_FALSE(DecodeOpen(Record(12, 0, std::string(kHelloBlobBytesMax + 1, 'b'))).ok());
  CHECK_FALSE(DecodeHello(std::string(kHelloBodyBytesMax + 1, '\0')).ok());
}

TEST_CASE("text from a peer is escaped", "[wire][hello]") {
  absl::Status refusal;
  REQUIRE(DecodeRefuse(BodyOf(EncodeRefuse(absl::AbortedError("a\n\x1b[31mb"))), refusal).ok());
  CHECK(refusal.message().find('\n') == absl::string_view::npos);
  CHECK(refusal.message().find('\x1b') == absl::string_view::npos);
}

TEST_CASE("a message cut anywhere is refused or is a shorter message, and nothing worse",
          "[wire][hello]") {
  const std::string body = BodyOf(EncodeHello(HelloType::kHelloReply, Sample()));
  for (size_t cut = 0; cut < body.size(); ++cut) (void)DecodeHello(body.substr(0, cut));
  std::mt19937 random(11);
  for (int i = 0; i < 20'000; ++i) {
    std::string changed = body;
    for (int j = 0; j < 3; ++j) changed[random() % changed.size()] = static_cast<char>(random());
    (void)DecodeHello(changed);
    (void)DecodeOpen(changed);
    absl::Status refusal;
    (void)DecodeRefuse(changed, refusal);
    CHECK_FALSE(refusal.ok());
  }
}

}  // namespace verbena::wire
