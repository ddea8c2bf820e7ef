// Readers that keep to nothing: keys that they were not given, memory outside a lease, leases that
// were taken back, and access of a kind that nobody has.
#include <cstring>
#include <vector>

#include "tests/fabric/verbs_rig.h"

namespace verbena::fabric::verbs {
namespace {

using contract::Filled;

constexpr LinkId kLink{1}, kRaw{3}, kSecond{4};
constexpr size_t kLeased = 8192, kOffset = 4096;

// A good link, and a raw reader with a lease of the second and third page of the region.
struct Forger {
  explicit Forger(const contract::Subject& subject) : rig(subject), raw(rig.server(), kRaw) {
    rig.Open(kLink);
    NewLane();
  }
  void NewLane() {
    ++generation;
    raw.OpenLane(generation);
    const LeaseSlot slot{5, generation};
    const RemoteKey made =
        contract::LeaseNow(rig.pair, rig.server(), rig.server_events(), slot, kRaw,
                           OwnerLane(generation), rig.region, kOffset, kLeased);
    key = *ReadKey(made);
  }
  ibv_wc_status Read(uint32_t rkey, uint64_t address, size_t bytes = 64) {
    memset(raw.memory(), 0, bytes);
    raw.PostRead(raw.lane(), address, rkey, 0, bytes);
    return raw.Next(&rig.pair);
  }
  // What was READ is the region's at `address`.
  bool Got(uint64_t address, size_t bytes = 64) {
    return memcmp(raw.memory(), reinterpret_cast<const void*>(address), bytes) == 0;
  }
  bool GotNothing(size_t bytes = 64) {
    const std::vector<std::byte> zeros(bytes);
    return memcmp(raw.memory(), zeros.data(), bytes) == 0;
  }
  // The region is as it was, and nobody else noticed anything.
  void Unharmed() {
    REQUIRE(Filled(rig.region->base(), rig.region->bytes(), 1));
    REQUIRE(rig.client_events().lanes_down[kLink].empty());
    rig.Works(kLink);
  }
  uint64_t base() { return reinterpret_cast<uint64_t>(rig.region->base()); }

  Rig rig;
  RawPeer raw;
  uint32_t generation = 0;
  KeyFields key;
};

bool Refused(ibv_wc_status status) { return status == IBV_WC_REM_ACCESS_ERR; }

TEST_CASE("a forged key reads nothing", "[faults][keys]") {
  VERBENA_EACH_RUNG(rung);
  Forger f(rung);
  const uint32_t right = f.key.rkey;
  REQUIRE(f.Read(right, f.key.address) == IBV_WC_SUCCESS);
  REQUIRE(f.Got(f.key.address));
  // The same object with another tag; the objects around it; no object. Each on a lane of its own,
  // since the answer costs it.
  for (const uint32_t forged : {right ^ 1, right ^ 0x80, right + 0x100, right - 0x100, 0u, ~0u}) {
    INFO("rkey " << std::hex << forged << ", the right one is " << right);
    REQUIRE(Refused(f.Read(forged, f.key.address)));
    REQUIRE(f.GotNothing());
    f.rig.server().BreakLane(kRaw, OwnerLane(f.generation));
    f.NewLane();
  }
  f.Unharmed();
}

TEST_CASE("what is registered and not leased cannot be read", "[faults][keys]") {
  VERBENA_EACH_RUNG(rung);
  Forger f(rung);
  absl::StatusOr<Domain*> domain =
      Domain::Of(*TestPort().device, f.rig.server().traits().revocation);
  REQUIRE(domain.ok());
  const Domain::Pin pin = (*domain)->Find(f.rig.region->base(), f.rig.region->bytes());
  REQUIRE(pin);
  const ibv_wc_status status = f.Read(pin.mr()->rkey, f.base());
  // By lane the registration's key is the leases' key: its lane's end is what protects it.
  if (f.rig.server().traits().revocation == Revocation::kLane) {
    REQUIRE(pin.mr()->rkey == f.key.rkey);
    REQUIRE(status == IBV_WC_SUCCESS);
  } else {
    REQUIRE(Refused(status));
    REQUIRE(f.GotNothing());
  }
  f.Unharmed();
}

TEST_CASE("a READ past a lease's end is refused where the traits say so", "[faults][keys]") {
  VERBENA_EACH_RUNG(rung);
  Forger f(rung);
  const bool enforced = f.rig.server().traits().bounds_enforced;
  if (f.rig.server().traits().revocation == Revocation::kLeaseMr) REQUIRE(enforced);
  if (f.rig.server().traits().revocation == Revocation::kLane) REQUIRE_FALSE(enforced);
  struct Range {
    uint64_t address;
    size_t bytes;
  };
  const uint64_t start = f.key.address, end = start + kLeased;
  for (const Range range : {Range{end, 1}, Range{end - 1, 2}, Range{start - 1, 2},
                            Range{start, kLeased + 1}, Range{f.base(), 64}}) {
    INFO("READ of " << range.bytes << " at " << static_cast<int64_t>(range.address - start));
    const ibv_wc_status status = f.Read(f.key.rkey, range.address, range.bytes);
    if (enforced) {
      REQUIRE(Refused(status));
      REQUIRE(f.GotNothing(range.bytes));
      f.rig.server().BreakLane(kRaw, OwnerLane(f.generation));
      f.NewLane();
    } else {
      REQUIRE(status == IBV_WC_SUCCESS);
      REQUIRE(f.Got(range.address, range.bytes));
    }
  }
  // Outside the region as well, whatever the rung.
  const uint64_t past = f.base() + f.rig.region->bytes();
  REQUIRE(Refused(f.Read(f.key.rkey, past)));
  f.Unharmed();
}

TEST_CASE("a lease that was taken back reads nothing", "[faults][keys]") {
  VERBENA_EACH_RUNG(rung);
  Forger f(rung);
  REQUIRE(f.Read(f.key.rkey, f.key.address) == IBV_WC_SUCCESS);
  f.rig.Revoked({5, f.generation});
  contract::Fill(f.rig.region->base(), f.rig.region->bytes(), 2);
  const ibv_wc_status status = f.Read(f.key.rkey, f.key.address);
  // By lane there is nobody left who would answer.
  const bool by_lane = f.rig.server().traits().revocation == Revocation::kLane;
  INFO(ibv_wc_status_str(status));
  REQUIRE((Refused(status) || (by_lane && status == IBV_WC_RETRY_EXC_ERR)));
  REQUIRE(f.GotNothing());
  contract::Fill(f.rig.region->base(), f.rig.region->bytes(), 1);
  f.rig.server().BreakLane(kRaw, OwnerLane(f.generation));
  f.Unharmed();
}

TEST_CASE("a revocation under READs: what arrives is from before it", "[faults][keys]") {
  VERBENA_EACH_RUNG(rung);
  Forger f(rung);
  constexpr uint32_t kReads = 16;
  constexpr size_t kChunk = 64 << 10, kInto = 8 * kChunk;
  const size_t packet_bytes = size_t{128} << TestPort().mtu_active;
  std::vector<std::byte> old(kChunk), zeros(packet_bytes);
  contract::Fill(old.data(), kChunk, 1);
  const bool by_window = f.rig.server().traits().revocation == Revocation::kWindow;
  const int late_max = by_window && InvalidationMissesAPacket() ? 1 : 0;
  for (int delay = 0; delay < 6; ++delay) {
    const LeaseSlot slot{6, f.generation};
    const RemoteKey made =
        contract::LeaseNow(f.rig.pair, f.rig.server(), f.rig.server_events(), slot, kRaw,
                           OwnerLane(f.generation), f.rig.region, 0, kChunk);
    memset(f.raw.memory(), 0, kInto);
    for (uint32_t i = 0; i < kReads; ++i) {
      f.raw.PostRead(f.raw.lane(), ReadKey(made)->address, ReadKey(made)->rkey, i * kChunk % kInto,
                     kChunk);
    }
    // Some have been answered already.
    std::vector<ibv_wc_status> statuses;
    while (statuses.size() < static_cast<size_t>(delay)) statuses.push_back(f.raw.Next());
    f.rig.Revoked(slot);
    contract::Fill(f.rig.region->base(), kChunk, 2);
    while (statuses.size() < kReads) statuses.push_back(f.raw.Next(&f.rig.pair));
    int good = 0;
    for (const ibv_wc_status status : statuses) good += status == IBV_WC_SUCCESS ? 1 : 0;
    INFO("delay " << delay << ": " << good << " of " << kReads << " arrived");
    int late = 0;
    for (size_t at = 0; at < kInto; at += packet_bytes) {
      const std::byte* const packet = f.raw.memory() + at;
      if (memcmp(packet, old.data() + at % kChunk, packet_bytes) == 0) continue;
      if (memcmp(packet, zeros.data(), packet_bytes) != 0) ++late;
    }
    REQUIRE(late <= late_max);
    contract::Fill(f.rig.region->base(), kChunk, 1);
    f.rig.server().BreakLane(kRaw, OwnerLane(f.generation));
    f.NewLane();
  }
  f.Unharmed();
}

TEST_CASE("a key serves on its own link's lane only, where keys are bound to lanes",
          "[faults][keys]") {
  VERBENA_EACH_RUNG(rung);
  Forger f(rung);
  RawPeer second(f.rig.server(), kSecond);
  second.OpenLane();
  second.PostRead(second.lane(), f.key.address, f.key.rkey, 0, 64);
  const ibv_wc_status status = second.Next(&f.rig.pair);
  // Registrations belong to the domain that all lanes of a rung share: who learns another's key
  // can use it until its lease ends.
  if (f.rig.server().traits().revocation == Revocation::kWindow) {
    REQUIRE(Refused(status));
  } else {
    REQUIRE(status == IBV_WC_SUCCESS);
  }
  f.Unharmed();
}

TEST_CASE("nothing is written or read through a control lane, nor written through a bulk lane",
          "[faults][keys]") {
  VERBENA_EACH_RUNG(rung);
  const auto opcode = GENERATE(IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_ATOMIC_FETCH_AND_ADD,
                               IBV_WR_ATOMIC_CMP_AND_SWP);
  const bool bulk = GENERATE(true, false);
  if (bulk && opcode == IBV_WR_RDMA_READ) return;  // what it is for
  INFO("opcode " << opcode << " on the " << (bulk ? "bulk" : "control") << " lane");
  Forger f(rung);
  ibv_sge piece = f.raw.Piece(0, 8);
  memset(f.raw.memory(), 0, 8);
  ibv_send_wr work = {};
  work.sg_list = &piece;
  work.num_sge = 1;
  work.opcode = opcode;
  if (opcode == IBV_WR_RDMA_READ || opcode == IBV_WR_RDMA_WRITE) {
    work.wr.rdma.remote_addr = f.key.address;
    work.wr.rdma.rkey = f.key.rkey;
  } else {
    work.wr.atomic.remote_addr = f.key.address;
    work.wr.atomic.rkey = f.key.rkey;
    work.wr.atomic.compare_add = 1;
  }
  f.raw.Post(bulk ? f.raw.lane() : f.raw.control(), work);
  const ibv_wc_status status = f.raw.Next(&f.rig.pair);
  INFO(ibv_wc_status_str(status));
  REQUIRE((status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR ||
           status == IBV_WC_REM_OP_ERR));
  REQUIRE(f.GotNothing(8));
  f.Unharmed();
}

}  // namespace
}  // namespace verbena::fabric::verbs
