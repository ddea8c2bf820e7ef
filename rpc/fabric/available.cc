#include "rpc/fabric/available.h"

#include <mutex>
#include <string>

#include "rpc/base/log.h"
#include "rpc/fabric/shm/shm_fabric.h"
#include "rpc/fabric/tcp/join_table.h"
#include "rpc/fabric/tcp/tcp_fabric.h"
#include "rpc/fabric/verbs/make.h"

namespace verbena::fabric {

namespace {

// Why the last reactor that asked has no verbs; OK when it has.
struct VerbsNote {
  std::mutex mutex;
  absl::Status status;
  std::string said;  // the last that was logged
};
VerbsNote& TheNote() {
  static VerbsNote* const note = new VerbsNote;
  return *note;
}

void NoteVerbs(const absl::Status& status) {
  {
    const std::lock_guard lock(TheNote().mutex);
    TheNote().status = status;
    // Most machines have no such device, which is nothing to speak of; and each reactor asks.
    if (status.ok() || absl::IsNotFound(status) || TheNote().said == status.message()) return;
    TheNote().said = std::string(status.message());
  }
  VERBENA_LOG(kWarning, "verbs cannot be used: ", status.message());
}

}  // namespace

std::vector<std::unique_ptr<Fabric>> MakeFabrics(const FabricOptions& options) {
  std::vector<std::unique_ptr<Fabric>> fabrics;
  if (shm::ShmUsable().ok()) {
    shm::ShmOptions shm;
    shm.host = options.host;
    shm.post_setup = options.post_setup;
    fabrics.push_back(std::make_unique<shm::ShmFabric>(shm));
  }
  verbs::MakeOptions verbs;
  verbs.post_setup = options.post_setup;
  verbs.numa_node = options.numa_node;
  absl::StatusOr<std::unique_ptr<Fabric>> made = verbs::Make(verbs);
  NoteVerbs(made.status());
  if (made.ok()) fabrics.push_back(*std::move(made));
  fabrics.push_back(std::make_unique<tcp::TcpFabric>());
  return fabrics;
}

std::string WhyMissing(absl::string_view name) {
  std::string why;
  if (name == "shm") {
    why = std::string(shm::ShmUsable().message());
  } else if (name == "verbs") {
    const std::lock_guard lock(TheNote().mutex);
    why = std::string(TheNote().status.message());
  }
  if (why.size() > kWhyBytesMax) why.resize(kWhyBytesMax);
  return why;
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
