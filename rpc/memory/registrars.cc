#include "rpc/memory/registrars.h"

#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "rpc/base/log.h"
#include "rpc/memory/known_regions.h"

namespace verbena::memory {
namespace {

struct Domain {
  Registrar* registrar = nullptr;
  std::string name;
  bool leaving = false;
  std::map<uint64_t, std::unique_ptr<Registration>> kept;  // by buffer id
};

struct Registrars {
  // Held while a domain registers or unregisters, which may take long: only setup work waits for
  // it.
  absl::Mutex setup ABSL_ACQUIRED_BEFORE(mutex);
  absl::Mutex mutex;
  std::vector<std::unique_ptr<Domain>> domains ABSL_GUARDED_BY(mutex);
  std::map<uint64_t, uint8_t> uses ABSL_GUARDED_BY(mutex);  // of each region that was registered
};

Registrars& All() {
  static Registrars* const all = new Registrars;
  return *all;
}

std::vector<Domain*> DomainsNow(Registrars& all) ABSL_LOCKS_EXCLUDED(all.mutex) {
  absl::MutexLock lock(&all.mutex);
  std::vector<Domain*> domains;
  for (const auto& d : all.domains) domains.push_back(d.get());
  return domains;
}

absl::Status RegisterOne(Registrars& all, Domain& domain, const Region& region, uint8_t uses)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(all.setup) ABSL_LOCKS_EXCLUDED(all.mutex) {
  absl::StatusOr<std::unique_ptr<Registration>> made = domain.registrar->Register(region, uses);
  if (!made.ok()) return made.status();
  absl::MutexLock lock(&all.mutex);
  domain.kept[region.buffer_id()] = *std::move(made);
  return absl::OkStatus();
}

void RegisterOrSay(Registrars& all, Domain& domain, const Region& region, uint8_t uses)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(all.setup) ABSL_LOCKS_EXCLUDED(all.mutex) {
  const absl::Status status = RegisterOne(all, domain, region, uses);
  if (status.ok() || absl::IsUnimplemented(status)) return;
  VERBENA_LOG(kWarning, "domain ", domain.name, " refuses a region of ", region.bytes(),
              " bytes: ", status.message());
}

absl::Status UnregisterOne(Registrars& all, Domain& domain, uint64_t buffer_id)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(all.setup) ABSL_LOCKS_EXCLUDED(all.mutex) {
  std::unique_ptr<Registration> registration;
  {
    absl::MutexLock lock(&all.mutex);
    const auto it = domain.kept.find(buffer_id);
    if (it == domain.kept.end()) return absl::OkStatus();
    registration = std::move(it->second);
    domain.kept.erase(it);
  }
  if (registration == nullptr) return absl::OkStatus();  // the registrar keeps nothing for it
  absl::Status status = domain.registrar->Unregister(registration);
  if (status.ok()) return status;
  absl::MutexLock lock(&all.mutex);
  domain.kept[buffer_id] = std::move(registration);
  return absl::Status(status.code(), absl::StrCat(domain.name, ": ", status.message()));
}

absl::Status UnregisterEverywhere(Registrars& all, uint64_t buffer_id)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(all.setup) ABSL_LOCKS_EXCLUDED(all.mutex) {
  absl::Status first_refusal;
  for (Domain* domain : DomainsNow(all))
    first_refusal.Update(UnregisterOne(all, *domain, buffer_id));
  return first_refusal;
}

}  // namespace

absl::Status AddRegistrar(Registrar& registrar, std::string name) {
  Registrars& all = All();
  absl::MutexLock setup(&all.setup);
  Domain* domain;
  std::map<uint64_t, uint8_t> uses;
  {
    absl::MutexLock lock(&all.mutex);
    for (const auto& d : all.domains) {
      if (d->registrar == &registrar) {
        return absl::AlreadyExistsError(absl::StrCat("domain ", d->name, " is registered already"));
      }
    }
    all.domains.push_back(std::make_unique<Domain>());
    domain = all.domains.back().get();
    domain->registrar = &registrar;
    domain->name = std::move(name);
    uses = all.uses;
  }
  for (const RegionRef& region : KnownRegions()) {
    const auto use = uses.find(region->buffer_id());
    if (use == uses.end()) continue;  // about to be registered, with this domain too
    RegisterOrSay(all, *domain, *region, use->second);
  }
  return absl::OkStatus();
}

absl::Status RemoveRegistrar(Registrar& registrar) {
  Registrars& all = All();
  absl::MutexLock setup(&all.setup);
  Domain* domain = nullptr;
  std::vector<uint64_t> kept;
  {
    absl::MutexLock lock(&all.mutex);
    for (const auto& d : all.domains) {
      if (d->registrar == &registrar) domain = d.get();
    }
    if (domain == nullptr) return absl::OkStatus();
    domain->leaving = true;
    for (const auto& [buffer_id, registration] : domain->kept) kept.push_back(buffer_id);
  }
  absl::Status first_refusal;
  for (const uint64_t buffer_id : kept)
    first_refusal.Update(UnregisterOne(all, *domain, buffer_id));
  if (!first_refusal.ok()) return first_refusal;
  absl::MutexLock lock(&all.mutex);
  std::erase_if(all.domains, [&](const auto& d) { return d.get() == domain; });
  return absl::OkStatus();
}

Registration* FindRegistration(const Registrar& registrar, uint64_t buffer_id) {
  Registrars& all = All();
  absl::MutexLock lock(&all.mutex);
  for (const auto& d : all.domains) {
    if (d->registrar != &registrar) continue;
    const auto it = d->kept.find(buffer_id);
    return it == d->kept.end() ? nullptr : it->second.get();
  }
  return nullptr;
}

absl::Status RegisterRegion(const RegionRef& region, uint8_t uses) {
  Registrars& all = All();
  absl::MutexLock setup(&all.setup);
  for (Domain* domain : DomainsNow(all)) {
    if (domain->leaving) continue;
    const absl::Status status = RegisterOne(all, *domain, *region, uses);
    if (status.ok() || absl::IsUnimplemented(status)) continue;
    UnregisterEverywhere(all, region->buffer_id()).IgnoreError();  // fresh: nobody can use it yet
    return absl::Status(status.code(), absl::StrCat(domain->name, ": ", status.message()));
  }
  absl::MutexLock lock(&all.mutex);
  all.uses[region->buffer_id()] = uses;
  return absl::OkStatus();
}

void RegisterWhereTaken(const RegionRef& region, uint8_t uses) {
  Registrars& all = All();
  absl::MutexLock setup(&all.setup);
  for (Domain* domain : DomainsNow(all)) {
    if (!domain->leaving) RegisterOrSay(all, *domain, *region, uses);
  }
  absl::MutexLock lock(&all.mutex);
  all.uses[region->buffer_id()] = uses;
}

absl::Status UnregisterRegion(uint64_t buffer_id) {
  Registrars& all = All();
  absl::MutexLock setup(&all.setup);
  absl::Status status = UnregisterEverywhere(all, buffer_id);
  if (!status.ok()) return status;
  absl::MutexLock lock(&all.mutex);
  all.uses.erase(buffer_id);
  return status;
}

}  // namespace verbena::memory
