#include "tests/system/peer_spread.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "peer.verbena.h"
#include "verbena/verbena.h"

namespace verbena::system_test {

struct Spread::Turns {
  explicit Turns(const std::vector<std::shared_ptr<Channel>>& channels)
      : stubs(channels.begin(), channels.end()), good(channels.size()), open(channels.size()) {}

  static void Next(const std::shared_ptr<Turns>& turns, size_t i) {
    turns->stubs[i].Echo({}).Then([turns, i](const absl::StatusOr<test::EchoReply>& reply) {
      ++(reply.ok() ? turns->good[i] : turns->bad);
      if (reply.ok() && !turns->stop) return Next(turns, i);
      --turns->open;
    });
  }

  std::vector<test::Peer::Stub> stubs;
  std::vector<std::atomic<uint64_t>> good;
  std::atomic<uint64_t> bad{0};
  std::atomic<size_t> open;
  std::atomic<bool> stop{false};
};

Spread::Spread(const std::vector<std::shared_ptr<Channel>>& channels)
    : turns_(std::make_shared<Turns>(channels)) {
  for (size_t i = 0; i < channels.size(); ++i) Turns::Next(turns_, i);
}

std::string Spread::Stop() {
  turns_->stop = true;
  while (turns_->open > 0) absl::SleepFor(absl::Milliseconds(1));
  uint64_t good = 0, least = UINT64_MAX, most = 0;
  for (const std::atomic<uint64_t>& one : turns_->good) {
    good += one;
    least = std::min<uint64_t>(least, one);
    most = std::max<uint64_t>(most, one);
  }
  return absl::StrCat("good=", good, " bad=", turns_->bad.load(), " least=", least, " most=", most);
}

}  // namespace verbena::system_test
