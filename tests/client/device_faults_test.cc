// What users hear when a device fails, or memory on it is gone: which side's, and which device.
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rpc/memory/fake_stream.h"
#include "tests/client/device_fixture.h"
#include "tests/client/fixture.h"

namespace verbena {
namespace {

constexpr size_t kCount = 1 << 16;  // a chunk of tcp
// Over verbs a NIC, or a copy made before the message left, takes the place of these copies.
constexpr const char* kTransports[] = {"shm", "tcp"};
const absl::Status kEcc = absl::AbortedError("CUDA_ERROR_ECC_UNCORRECTABLE");

// A fetch from fake:13 into fake:14, whose copies wait.
struct Faulty {
  // `ipc`: its reader's device copies over shm; else by stages, as over tcp.
  explicit Faulty(const std::string& transport, bool ipc = true)
      : user(Shape(kCount), 13),
        giver(user.tensor, ChannelOptions().set_require_transport(transport)) {
    if (!ipc) from.RefuseExports(absl::FailedPreconditionError("IPC is disabled here"));
    reply.emplace(giver.Get());
    destination = *to.Allocate(kCount * sizeof(float));
  }
  ~Faulty() {
    for (FakeDevice* fake : {&from, &to}) {
      fake->LetCopies(-1);
      fake->Break(absl::OkStatus());
      fake->RefuseExports(absl::OkStatus());
      fake->RefuseImports(absl::OkStatus());
    }
    if (destination.base != nullptr) to.Free(destination);
  }
  Call<Tensor> Fetch(Path path = Path::kNone) {
    Tensor into = *Tensor::Wrap(
        Buffer::Wrap(destination.base, kCount * sizeof(float), nullptr, Device::Fake(14)), kFloat32,
        Shape(kCount));
    return reply->Fetch((*reply)->output(), Placement::Into(into).RequirePath(path));
  }
  void FreeDestination() { to.Free(std::exchange(destination, {})); }

  FakeDevice& from = Fake(13);
  FakeDevice& to = Fake(14);
  UserTensor user;
  Giver giver;
  std::optional<Parcel<test::InferReply>> reply;
  memory::Extent destination;
};

void CheckSays(const absl::Status& status, absl::StatusCode code, const std::string& words) {
  INFO(status.ToString());
  CHECK(status.code() == code);
  CHECK(absl::StrContains(status.message(), words));
}

TEST_CASE("a destination's device that fails during a fetch is named", "[client][device][fault]") {
  for (const std::string transport : kTransports) {
    INFO(transport);
    Faulty f(transport);
    f.to.LetCopies(0);
    auto fetch = f.Fetch();
    REQUIRE(Eventually([&] { return f.to.waiting() == 1; }));
    f.to.Break(kEcc);
    CheckSays(std::move(fetch).Get().status(), absl::StatusCode::kAborted,
              "fake:14, which holds the destination, has failed: CUDA_ERROR_ECC_UNCORRECTABLE");
    // The link and other devices go on.
    REQUIRE_CODE(f.reply->Fetch((*f.reply)->output(), Device::Host()).Get().status(), kOk);
  }
}

TEST_CASE("an owner's device that fails during a fetch is named", "[client][device][fault]") {
  for (const std::string transport : kTransports) {
    INFO(transport);
    Faulty f(transport, false);
    f.from.LetCopies(0);
    auto fetch = f.Fetch();
    REQUIRE(Eventually([&] { return f.from.waiting() == 1; }));
    f.from.Break(kEcc);
    CheckSays(std::move(fetch).Get().status(), absl::StatusCode::kDataLoss,
              "fake:13 of its owner, which holds it, has failed");
  }
}

TEST_CASE("a destination that is freed during a fetch is named", "[client][device][fault]") {
  for (const std::string transport : kTransports) {
    INFO(transport);
    Faulty f(transport);
    f.to.LetCopies(0);
    auto fetch = f.Fetch();
    REQUIRE(Eventually([&] { return f.to.waiting() == 1; }));
    f.FreeDestination();
    f.to.LetCopies(-1);
    CheckSays(std::move(fetch).Get().status(), absl::StatusCode::kFailedPrecondition,
              "the destination on fake:14 was freed during the fetch");
  }
}

TEST_CASE("memory that its owner freed, and got again for something else, is not read",
          "[client][device][fault]") {
  for (const std::string transport : kTransports) {
    INFO(transport);
    Faulty f(transport, false);
    f.from.Renumber(f.user.allocation.base);
    CheckSays(f.Fetch().Get().status(), absl::StatusCode::kDataLoss,
              "the payload's memory vanished");
  }
}

TEST_CASE("a device without memory for a fetch says so, and the next one has it",
          "[client][device][fault]") {
  FakeDevice& full = Fake(15);
  UserTensor user(Shape(kCount), 13);
  for (const std::string transport : kTransports) {
    INFO(transport);
    Giver giver(user.tensor, ChannelOptions().set_require_transport(transport));
    auto reply = giver.Get();
    // More than what the pool of the device may have left.
    std::vector<Tensor> others;
    full.RefuseAllocations(absl::ResourceExhaustedError("fake:15: CUDA_ERROR_OUT_OF_MEMORY"));
    while (others.size() < 1000) {
      auto tensor = Tensor::Empty(kFloat32, Shape(kCount), Device::Fake(15));
      if (!tensor.ok()) break;
      others.push_back(*std::move(tensor));
    }
    CheckSays(reply.Fetch(reply->output(), Device::Fake(15)).Get().status(),
              absl::StatusCode::kResourceExhausted, "fake:15: CUDA_ERROR_OUT_OF_MEMORY");
    full.RefuseAllocations(absl::OkStatus());
    REQUIRE_CODE(reply.Fetch(reply->output(), Device::Fake(15)).Get().status(), kOk);
  }
}

// Whatever keeps fake:14 from mapping fake:13's memory, its owner's side or its own.
void GoesByStages(Faulty& f) {
  auto fetch = f.Fetch();
  REQUIRE(Eventually([&] { return fetch.done(); }));
  CHECK(fetch.report().path == Path::kPinnedStaging);
  REQUIRE_CODE(std::move(fetch).Get().status(), kOk);
  std::vector<float> seen(kCount);
  f.to.Read(seen.data(), f.destination.base, kCount * sizeof(float));
  CHECK(seen == Counting(kCount));
  // Nothing moves for who wants another path, and both are named.
  const std::vector<float> zeros(kCount);
  f.to.Write(f.destination.base, zeros.data(), kCount * sizeof(float));
  for (const Path path : {Path::kNvlinkIpc, Path::kPeerIpc}) {
    auto refused = f.Fetch(path);
    CheckSays(std::move(refused).Get().status(), absl::StatusCode::kFailedPrecondition,
              absl::StrCat("the path of these bytes is pinned-staging, and ", PathName(path),
                           " is required"));
  }
  CheckSays(f.Fetch(Path{77}).Get().status(), absl::StatusCode::kFailedPrecondition,
            "pinned-staging, and unknown (77) is required");
  f.to.Read(seen.data(), f.destination.base, kCount * sizeof(float));
  CHECK(seen == zeros);
  auto required = f.Fetch(Path::kPinnedStaging);
  REQUIRE_CODE(std::move(required).Get().status(), kOk);
}

TEST_CASE("without IPC a fetch goes by stages, or says that it would", "[client][device][fault]") {
  Faulty f("shm", false);
  GoesByStages(f);
}

TEST_CASE("between devices without peer access a fetch goes by stages, or says that it would",
          "[client][device][fault]") {
  Faulty f("shm");
  f.to.RefuseImports(absl::UnimplementedError("CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"));
  GoesByStages(f);
  // On the owner's own device it needs none.
  auto same = f.reply->Fetch((*f.reply)->output(), Placement(Device::Fake(13)));
  REQUIRE(Eventually([&] { return same.done(); }));
  CHECK(same.report().path == Path::kSameDevice);
  REQUIRE_CODE(std::move(same).Get().status(), kOk);
}

}  // namespace
}  // namespace verbena
