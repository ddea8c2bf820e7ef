#include "rpc/fabric/shm/withdrawals.h"

#include <mutex>
#include <vector>

#include "rpc/memory/helpers.h"
#include "rpc/memory/registrars.h"

namespace verbena::fabric::shm {
namespace {

struct Buffer final : memory::Registration {
  explicit Buffer(uint64_t i) : id(i) {}
  const uint64_t id;
};

// Keeps nothing for a region but its number: leases keep what they need themselves, and nobody
// unregisters a region that has some.
class Withdrawals final : public memory::Registrar {
 public:
  void Add(const std::shared_ptr<Inbox>& inbox) {
    const std::lock_guard lock(mutex_);
    std::erase_if(inboxes_, [](const auto& known) { return known.expired(); });
    inboxes_.push_back(inbox);
  }
  absl::StatusOr<std::unique_ptr<memory::Registration>> Register(const memory::Region& region,
                                                                 uint8_t) override {
    if (region.device().host_accessible() && region.kind() != memory::RegionKind::kSlab) {
      return absl::UnimplementedError("shm: exported by no descriptor");
    }
    return std::make_unique<Buffer>(region.buffer_id());
  }
  absl::Status Unregister(std::unique_ptr<memory::Registration>& registration) override {
    JobResult result;
    result.kind = JobResult::Kind::kWithdrawn;
    result.buffer = static_cast<const Buffer&>(*registration).id;
    registration.reset();
    const std::lock_guard lock(mutex_);
    for (const std::weak_ptr<Inbox>& known : inboxes_) {
      if (const std::shared_ptr<Inbox> inbox = known.lock()) inbox->Push(result);
    }
    return absl::OkStatus();
  }

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<Inbox>> inboxes_;
};

}  // namespace

void HearOfWithdrawals(const std::shared_ptr<Inbox>& inbox) {
  static Withdrawals* const withdrawals = [] {
    auto* const made = new Withdrawals;
    memory::PostToSetup([made] { memory::AddRegistrar(*made, "shm").IgnoreError(); });
    return made;
  }();
  withdrawals->Add(inbox);
}

}  // namespace verbena::fabric::shm
