#include "rpc/memory/registrars.h"

#include <set>
#include <utility>
#include <vector>

#include "rpc/memory/known_regions.h"
#include "rpc/memory/pool.h"
#include "rpc/memory/user_memory.h"
#include "tests/catch.h"

namespace verbena::memory {
namespace {

// A domain that notes what it is asked, and refuses on demand.
class Domain final : public Registrar {
 public:
  absl::StatusOr<std::unique_ptr<Registration>> Register(const Region& region,
                                                         uint8_t uses) override {
    if (!refuse.ok()) return refuse;
    kept.insert(region.buffer_id());
    last_uses = uses;
    return std::unique_ptr<Registration>(std::make_unique<Kept>(*this, region.buffer_id()));
  }
  absl::Status Unregister(std::unique_ptr<Registration>& registration) override {
    if (busy) return absl::FailedPreconditionError("lease 7 is in use");
    registration.reset();
    return absl::OkStatus();
  }

  absl::Status refuse;
  bool busy = false;
  uint8_t last_uses = 0;
  std::set<uint64_t> kept;

 private:
  class Kept final : public Registration {
   public:
    Kept(Domain& domain, uint64_t id) : domain_(domain), id_(id) {}
    ~Kept() override { domain_.kept.erase(id_); }

   private:
    Domain& domain_;
    uint64_t id_;
  };
};

// Registered for the scope of a test.
struct Scoped {
  Scoped() { REQUIRE(AddRegistrar(domain, "test").ok()); }
  ~Scoped() {
    domain.busy = false;
    CHECK(RemoveRegistrar(domain).ok());
    CHECK(domain.kept.empty());
  }
  Domain domain;
};

constexpr uint8_t kAll = 7;

PoolOptions Tiny() {
  PoolOptions options;
  options.bytes_max = 64 << 20;
  options.first_slab_bytes = 2 << 20;
  options.large_bytes = 2 << 20;
  options.slab_bytes_max = 2 << 20;
  options.kept_bytes_max = 4 << 20;
  return options;
}

TEST_CASE("slabs are registered when they are made, and with domains that come later",
          "[registrars]") {
  SlabPool pool(Tiny());
  absl::StatusOr<Block> before = pool.Allocate(100);
  REQUIRE(before.ok());
  Scoped scoped;
  const uint64_t first = before->region()->buffer_id();
  CHECK(scoped.domain.kept.count(first) == 1);
  CHECK(FindRegistration(scoped.domain, first) != nullptr);
  absl::StatusOr<Block> after = pool.Allocate(3 << 20);
  REQUIRE(after.ok());
  CHECK(scoped.domain.kept.count(after->region()->buffer_id()) == 1);
  CHECK(scoped.domain.last_uses == kAll);
  CHECK(FindRegistration(scoped.domain, 0) == nullptr);
}

TEST_CASE("a slab that is unmapped is unregistered first, and stays while it is used",
          "[registrars]") {
  SlabPool pool(Tiny());
  Scoped scoped;
  absl::StatusOr<Block> block = pool.Allocate(8 << 20);
  REQUIRE(block.ok());
  const uint64_t id = block->region()->buffer_id();
  scoped.domain.busy = true;
  // The block dies, more is free than may be kept, but a lease is in the way.
  // Expect: the slab stays mapped, registered and usable.
  block->Reset();
  CHECK(pool.stats().kept_bytes == 8 << 20);
  CHECK(FindRegistration(scoped.domain, id) != nullptr);
  scoped.domain.busy = false;
  block = pool.Allocate(8 << 20);
  CHECK(block->region()->buffer_id() == id);
  block->Reset();
  CHECK(pool.stats().slab_bytes == 0);
  CHECK(scoped.domain.kept.count(id) == 0);
}

TEST_CASE("a domain that refuses a slab does not keep the pool from growing", "[registrars]") {
  SlabPool pool(Tiny());
  Scoped scoped;
  scoped.domain.refuse = absl::ResourceExhaustedError("memlock");
  absl::StatusOr<Block> block = pool.Allocate(100);
  REQUIRE(block.ok());
  CHECK(FindRegistration(scoped.domain, block->region()->buffer_id()) == nullptr);
}

TEST_CASE("users' memory is registered with all domains or none", "[registrars][user]") {
  Scoped one, two;
  std::vector<std::byte> memory(4096);
  const auto read_into =
      static_cast<uint8_t>(static_cast<int>(Use::kReadInto) | static_cast<int>(Use::kLeasable));
  two.domain.refuse = absl::ResourceExhaustedError("memlock is 8 MiB");
  const absl::Status refused =
      RegisterUserMemory(memory.data(), memory.size(), ::verbena::Device::Host(), false).status();
  CHECK(absl::IsResourceExhausted(refused));
  CHECK(std::string(refused.message()) == "test: memlock is 8 MiB");
  CHECK(FindKnownRegion(memory.data(), 1, ::verbena::Device::Host()) == nullptr);

  two.domain.refuse = absl::UnimplementedError("not for host memory");
  absl::StatusOr<RegionRef> region =
      RegisterUserMemory(memory.data(), memory.size(), ::verbena::Device::Host(), false);
  REQUIRE(region.ok());
  CHECK(one.domain.last_uses == read_into);
  CHECK(FindRegistration(two.domain, (*region)->buffer_id()) == nullptr);

  one.domain.busy = true;
  const absl::Status busy = UnregisterUserMemory(*region);
  CHECK(absl::IsFailedPrecondition(busy));
  CHECK(std::string(busy.message()) == "test: lease 7 is in use");
  CHECK(FindKnownRegion(memory.data(), 1, ::verbena::Device::Host()) == *region);
  one.domain.busy = false;
  CHECK(UnregisterUserMemory(*region).ok());
  CHECK(*region == nullptr);
}

TEST_CASE("read-only memory is registered to be read only", "[registrars][user]") {
  Scoped scoped;
  std::vector<std::byte> memory(4096);
  absl::StatusOr<RegionRef> region =
      RegisterUserMemory(memory.data(), memory.size(), ::verbena::Device::Host(), true);
  REQUIRE(region.ok());
  CHECK(scoped.domain.last_uses == static_cast<uint8_t>(Use::kLeasable));
  CHECK(UnregisterUserMemory(*region).ok());
}

TEST_CASE("a domain leaves only when nothing of it is in use", "[registrars]") {
  Domain domain;
  REQUIRE(AddRegistrar(domain, "leaving").ok());
  CHECK(absl::IsAlreadyExists(AddRegistrar(domain, "again")));
  std::vector<std::byte> memory(4096);
  absl::StatusOr<RegionRef> region =
      RegisterUserMemory(memory.data(), memory.size(), ::verbena::Device::Host(), false);
  REQUIRE(region.ok());
  domain.busy = true;
  CHECK(absl::IsFailedPrecondition(RemoveRegistrar(domain)));
  // While it leaves, nothing new goes there.
  std::vector<std::byte> more(64);
  absl::StatusOr<RegionRef> late =
      RegisterUserMemory(more.data(), more.size(), ::verbena::Device::Host(), false);
  REQUIRE(late.ok());
  CHECK(FindRegistration(domain, (*late)->buffer_id()) == nullptr);
  domain.busy = false;
  CHECK(RemoveRegistrar(domain).ok());
  CHECK(RemoveRegistrar(domain).ok());
  CHECK(UnregisterUserMemory(*region).ok());
  CHECK(UnregisterUserMemory(*late).ok());
}

}  // namespace
}  // namespace verbena::memory
