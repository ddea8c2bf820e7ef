// What a peer says on a bulk connection of the tcp fabric, at either end of the lane, and its
// offers. The first byte chooses; the second how the rest is cut.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "rpc/base/check.h"
#include "rpc/fabric/tcp/bulk_owner.h"
#include "rpc/fabric/tcp/bulk_reader.h"

namespace verbena::fabric::tcp {
namespace {

constexpr LinkId kLink{1};
constexpr size_t kLeased = 4096;

class Host final : public memory::Device {
 public:
  ::verbena::Device where() const override { return ::verbena::Device::Host(); }
  bool host_accessible() const override { return true; }
  absl::StatusOr<std::vector<memory::Extent>> Describe(const void*, size_t) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<memory::Export> ExportTo(const memory::Extent&, memory::ExportWay) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<memory::Mapping> Import(memory::Export) override {
    return absl::UnimplementedError("");
  }
  void Release(const memory::Mapping&) override {}
  absl::StatusOr<memory::Extent> Allocate(size_t) override { return absl::UnimplementedError(""); }
  void Free(const memory::Extent&) override {}
  std::unique_ptr<memory::CopyEngine> MakeCopyEngine() override { return nullptr; }
};

Host host;
std::byte memory_bytes[kLeased];
std::byte discard[BulkReader::kDiscardBytes];

struct Ends {
  int peer = -1, mine = -1;
  Ends() {
    int fds[2];
    VERBENA_CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    peer = fds[0];
    mine = fds[1];
  }
  ~Ends() { close(peer); }
};

// Hands `data` over in pieces of `cut` and calls `look` after each, until it returns false.
template <class Look>
void Feed(int peer, const uint8_t* data, size_t size, size_t cut, Look look) {
  char drain[65536];
  while (size > 0) {
    const size_t n = std::min(size, cut);
    if (send(peer, data, n, MSG_DONTWAIT | MSG_NOSIGNAL) != static_cast<ssize_t>(n)) return;
    data += n;
    size -= n;
    if (!look()) return;
    while (recv(peer, drain, sizeof drain, MSG_DONTWAIT) > 0) {
    }
  }
}

void Owner(const uint8_t* data, size_t size, size_t cut) {
  Ends ends;
  LeaseTable leases;
  DeviceCopies copies;
  const Lane lane{0, LaneRole::kOwner, 1};
  const auto region = std::make_shared<memory::Region>(
      host, memory::Extent{memory_bytes, kLeased, 1}, memory::RegionKind::kForeign, -1, 0);
  const RemoteKey key = leases.Add({1, 1}, kLink, lane, region, memory_bytes, kLeased);
  BulkOwner owner(kLink, 1, lane, leases, copies);
  owner.Open(ends.mine);
  // The random half of the key is not for the fuzzer to guess: a request may ask for it with ~0.
  std::vector<uint8_t> bytes(data, data + size);
  for (size_t at = 0; at + kRequestBytes <= size; at += kRequestBytes) {
    uint64_t word = 0;
    memcpy(&word, &bytes[at + 16], sizeof word);
    if (word == ~uint64_t{0}) memcpy(&bytes[at + 16], &key.words[1], sizeof word);
  }
  Feed(ends.peer, bytes.data(), size, cut, [&] {
    bool moved = false;
    size_t budget = 1 << 16;
    return owner.Receive(moved).ok() && owner.Serve(budget, moved).ok();
  });
}

void Reader(const uint8_t* data, size_t size, size_t cut) {
  Ends ends;
  std::byte into[300];
  int posted = 0, ended = 0;
  const auto count = [&](BulkReader::PostedRead&, Error) { ++ended; };
  {
    BulkReader reader(discard);
    reader.Open(ends.mine);
    for (uint32_t i = 0; i < 6; ++i, ++posted) {
      BulkReader::PostedRead read;
      read.slot = {i, 1};
      read.bytes = i * 40;
      read.pieces = {{&host, into, i * 20}, {&host, into + 150, i * 20}};
      reader.Post(read);
    }
    bool moved = false;
    (void)reader.Flush(moved);
    Feed(ends.peer, data, size, cut, [&] {
      size_t budget = 1 << 16;
      return reader.Receive(count, budget, moved).ok();
    });
    reader.FailAll(count, Error::kLaneDown);
  }
  VERBENA_CHECK(posted == ended, posted, " READs, ", ended, " answers");
}

}  // namespace
}  // namespace verbena::fabric::tcp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace tcp = verbena::fabric::tcp;
  if (size < 2 || size > 64 * 1024) return 0;
  const size_t cut = size_t{data[1]} * 8 + 1;
  switch (data[0] % 3) {
    case 0:
      (void)tcp::ParseLaneOffer({reinterpret_cast<const char*>(data + 2), size - 2});
      (void)tcp::CheckLinkOffer({reinterpret_cast<const char*>(data + 2), size - 2});
      break;
    case 1:
      tcp::Owner(data + 2, size - 2, cut);
      break;
    case 2:
      tcp::Reader(data + 2, size - 2, cut);
      break;
  }
  return 0;
}
