#include "tests/fabric/verbs_rig.h"

#include <sys/utsname.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <ostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/fabric/verbs/self_test.h"
#include "rpc/fabric/verbs/settings.h"
#include "rpc/fabric/verbs/sysfs.h"

namespace verbena::fabric::verbs {
namespace {

using contract::Filled;
using contract::PlainDevice;

std::atomic<int> windows{0};
ibv_mw* (*alloc_window)(ibv_pd*, ibv_mw_type) = nullptr;
int (*dealloc_window)(ibv_mw*) = nullptr;

ibv_mw* CountedAlloc(ibv_pd* pd, ibv_mw_type type) {
  ibv_mw* const made = alloc_window(pd, type);
  if (made != nullptr) ++windows;
  return made;
}
int CountedDealloc(ibv_mw* window) {
  const int result = dealloc_window(window);
  if (result == 0) --windows;
  return result;
}

void CountWindows(ibv_context_ops& ops) {
  static std::once_flag once;
  std::call_once(once, [&ops] {
    alloc_window = std::exchange(ops.alloc_mw, CountedAlloc);
    dealloc_window = std::exchange(ops.dealloc_mw, CountedDealloc);
  });
}

int CountIn(const std::string& text, const std::string& name) {
  const size_t at = text.find(" " + name + " ");
  INFO(text);
  REQUIRE(at != std::string::npos);
  return atoi(text.c_str() + at + name.size() + 2);
}

// Beside those that the tests use, from 0 on.
constexpr uint32_t kOwnSlots = 4096;

}  // namespace

std::ostream& operator<<(std::ostream& out, const Resources& r) {
  return out << "QP " << r.pairs << " CQ " << r.queues << " SRQ " << r.shared_queues << " MR "
             << r.registrations << " PD " << r.domains << " MW " << r.windows;
}

Resources ResourcesNow() {
  FILE* const out = popen("rdma resource show", "r");
  REQUIRE(out != nullptr);
  char line[512] = {};
  std::string text;
  const std::string device = absl::StrCat(" ", TestPort().device->name(), ":");
  while (fgets(line, sizeof line, out) != nullptr) {
    if (strstr(line, device.c_str()) != nullptr) text = line;
  }
  pclose(out);
  return {CountIn(text, "qp"), CountIn(text, "cq"), CountIn(text, "srq"),
          CountIn(text, "mr"), CountIn(text, "pd"), windows.load()};
}

uint64_t RnrEvents() {
  return TroubleIn(HardwareCounters(TestPort().device->name(), TestPort().port)).rnr.value_or(0);
}

bool InvalidationMissesAPacket() {
  utsname kernel{};
  REQUIRE(uname(&kernel) == 0);
  const bool soft =
      NamesIn(absl::StrCat(kSysfs, "/class/infiniband/", TestPort().device->name(), "/device"))
          .empty();
  return soft && !absl::StartsWith(kernel.release, "6.1.");
}

PortAddress TestPort() {
  static const absl::StatusOr<PortAddress>* const port = [] {
    auto* chosen =
        new absl::StatusOr<PortAddress>(ChoosePort(-1, Settings::FromEnvironment().filter));
    if (chosen->ok()) CountWindows((*chosen)->device->context()->ops);
    return chosen;
  }();
  INFO(port->status());
  REQUIRE(port->ok());
  return **port;
}

const std::vector<contract::Subject>& Rungs() {
  static const auto* const rungs = new std::vector<contract::Subject>([] {
    const SelfTest tested = RunSelfTest(TestPort());
    return std::vector<contract::Subject>{
        contract::VerbsSubject({"by window", Revocation::kWindow, true, tested.bounds_enforced}),
        contract::VerbsSubject({"by registration", Revocation::kLeaseMr}),
        contract::VerbsSubject({"by lane", Revocation::kLane})};
  }());
  return *rungs;
}

Rig::Rig(const contract::Subject& subject)
    : pair(subject), region(contract::MakeSlab(1 << 20)), rnr_before_(RnrEvents()) {
  contract::Fill(region->base(), region->bytes(), 1);
}

Rig::~Rig() {
  if (!rnr_expected) CHECK(RnrEvents() == rnr_before_);
}

void Rig::Open(LinkId link) {
  pair.Connect(link);
  pair.OpenLane(link, 0, pair.client());
  Works(link);
}

RemoteKey Rig::Lease(LeaseSlot slot, LinkId link, size_t bytes, uint32_t generation) {
  return contract::LeaseNow(pair, pair.server(), pair.server_events, slot, link,
                            OwnerLane(generation), region, 0, bytes);
}

void Rig::Read(ReadSlot slot, LinkId link, const RemoteKey& key, std::byte* to, size_t bytes,
               uint32_t generation) {
  const LocalPiece piece{&PlainDevice(), to, bytes};
  pair.client().Read(slot, link, ReaderLane(generation), key, 0, {&piece, 1});
}

Error Rig::Done(ReadSlot slot) {
  std::vector<Error>& answers = pair.client_events.reads[slot.word()];
  REQUIRE(pair.Until([&] { return !answers.empty(); }));
  REQUIRE(answers.size() == 1);
  return answers[0];
}

void Rig::Revoked(LeaseSlot slot, bool by_force) {
  if (by_force) {
    pair.server().Revoke(slot);
  } else {
    pair.server().Release(slot);
  }
  REQUIRE(pair.Until([&] { return pair.server_events.revoked[slot.word()] > 0; }));
  REQUIRE(pair.server_events.revoked[slot.word()] == 1);
}

void Rig::Works(LinkId link, uint32_t generation) {
  const LeaseSlot slot{kOwnSlots + static_cast<uint32_t>(link), next_slot_};
  const RemoteKey key = Lease(slot, link, 4096, generation);
  std::vector<std::byte> to(4096);
  const ReadSlot read{next_slot_++, 1};
  Read(read, link, key, to.data(), to.size(), generation);
  REQUIRE(Done(read) == Error::kOk);
  REQUIRE(memcmp(to.data(), region->base(), to.size()) == 0);
  Revoked(slot, false);
  for (auto [from, events] : {std::pair(&pair.client(), &pair.server_events),
                              std::pair(&pair.server(), &pair.client_events)}) {
    const size_t frames = events->frames_of(link);
    REQUIRE(contract::SendFrame(*from, link, 3000, next_slot_));
    REQUIRE(pair.Until([&, &sink = *events] { return sink.frames_of(link) > frames; }));
    REQUIRE(contract::FrameIs(events->frames[link].back(), 3000, next_slot_));
  }
}

void Rig::Closed(LinkId link) {
  pair.client().Close(link);
  pair.server().Close(link);
  REQUIRE(pair.Until([&] {
    return !pair.client_events.down[link].empty() && !pair.server_events.down[link].empty();
  }));
  REQUIRE(pair.client_events.down[link].size() == 1);
  REQUIRE(pair.server_events.down[link].size() == 1);
}

ibv_qp* ControlPairOf(VerbsFabric& fabric, LinkId link) {
  for (ibv_qp* const qp : fabric.QueuePairsOf(link)) {
    if (qp->srq != nullptr) return qp;
  }
  FAIL("the link has no control lane");
  return nullptr;
}

ibv_qp* BulkPairOf(VerbsFabric& fabric, LinkId link) {
  for (ibv_qp* const qp : fabric.QueuePairsOf(link)) {
    if (qp->srq == nullptr) return qp;
  }
  FAIL("the link has no bulk lane");
  return nullptr;
}

void ForceError(ibv_qp* qp) {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_ERR;
  REQUIRE(ibv_modify_qp(qp, &attributes, IBV_QP_STATE) == 0);
}

}  // namespace verbena::fabric::verbs
