#include "rpc/fabric/available.h"

#include "absl/strings/str_cat.h"
#include "rpc/fabric/shm/shm_fabric.h"
#include "rpc/fabric/tcp/join_table.h"
#include "rpc/fabric/tcp/tcp_fabric.h"

namespace verbena::fabric {

std::vector<std::unique_ptr<Fabric>> MakeFabrics(const FabricOptions& options) {
  std::vector<std::unique_ptr<Fabric>> fabrics;
  if (shm::ShmUsable().ok()) {
    shm::ShmOptions shm;
    shm.host = options.host;
    shm.post_setup = options.post_setup;
    fabrics.push_back(std::make_unique<shm::ShmFabric>(shm));
  }
  fabrics.push_back(std::make_unique<tcp::TcpFabric>());
  return fabrics;
}

std::string MissingFabrics() {
  const absl::Status shm = shm::ShmUsable();
  return shm.ok() ? std::string() : absl::StrCat("shm: ", shm.message());
}

static_assert(kGreetingBytes == tcp::kGreetingBytes);

bool IsGreeting(absl::string_view bytes) {
  return tcp::MayBeGreeting(
      absl::MakeSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
}

bool TakeGreeted(absl::string_view greeting, int fd) {
  return tcp::JoinTable::Get().Join(
      tcp::TokenOfGreeting(reinterpret_cast<const std::byte*>(greeting.data())), fd);
}

}  // namespace verbena::fabric
