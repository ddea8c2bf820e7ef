#include "rpc/memory/slab.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <limits>
#include <vector>

#include "tests/catch.h"

namespace verbena::memory {
namespace {

TEST_CASE("a slab is aligned to huge pages, rounded up, zeroed and faulted in", "[slab]") {
  absl::StatusOr<std::shared_ptr<Slab>> slab = Slab::Create((2 << 20) + 1, -1);
  REQUIRE(slab.ok());
  CHECK((*slab)->bytes() == 4 << 20);
  CHECK(reinterpret_cast<uintptr_t>((*slab)->base()) % Slab::kAlignment == 0);
  CHECK((*slab)->kind() == RegionKind::kSlab);
  std::vector<unsigned char> resident((*slab)->bytes() / 4096);
  REQUIRE(mincore((*slab)->base(), (*slab)->bytes(), resident.data()) == 0);
  for (const unsigned char page : resident) REQUIRE((page & 1) == 1);
  CHECK((*slab)->base()[12345] == std::byte{0});
}

TEST_CASE("whoever has a slab's descriptor cannot shrink it", "[slab]") {
  absl::StatusOr<std::shared_ptr<Slab>> slab = Slab::Create(1, -1);
  REQUIRE(slab.ok());
  const int fd = (*slab)->fd();
  CHECK(ftruncate(fd, 4096) != 0);
  CHECK(ftruncate(fd, 1 << 30) != 0);
  CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) != 0);
  CHECK(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
  void* const readable = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
  REQUIRE(readable != MAP_FAILED);
  (*slab)->base()[7] = std::byte{42};
  CHECK(static_cast<const std::byte*>(readable)[7] == std::byte{42});
  munmap(readable, 4096);
}

TEST_CASE("a node that is not there does not keep a slab from being made", "[slab]") {
  CHECK(Slab::Create(1, 0).ok());
  CHECK(Slab::Create(1, 900).ok());
  CHECK(Slab::Create(1, 1 << 20).ok());
}

TEST_CASE("sizes that no machine has are errors, not crashes", "[slab][hostile]") {
  for (const uint64_t bytes :
       {uint64_t{0}, std::numeric_limits<uint64_t>::max(), uint64_t{1} << 62, uint64_t{1} << 50}) {
    const absl::Status status = Slab::Create(bytes, -1).status();
    CHECK_FALSE(status.ok());
  }
}

}  // namespace
}  // namespace verbena::memory
