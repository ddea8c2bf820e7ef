// The devices of this process.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "rpc/base/check.h"
#include "rpc/memory/device.h"
#include "rpc/memory/host_device.h"

namespace verbena::memory {
namespace {

struct Devices {
  absl::Mutex mutex;
  std::vector<std::unique_ptr<Device>> others
      ABSL_GUARDED_BY(mutex);  // never removed: regions point to them
  std::string no_gpus ABSL_GUARDED_BY(mutex);
};

Devices& All() {
  static Devices* const all = new Devices;
  return *all;
}

Device* Find(Devices& all, ::verbena::Device where) ABSL_SHARED_LOCKS_REQUIRED(all.mutex) {
  for (const auto& device : all.others) {
    if (device->where() == where) return device.get();
  }
  return nullptr;
}

// What is known, or why nothing is.
absl::Status NoDevice(const Devices& all, ::verbena::Device where)
    ABSL_SHARED_LOCKS_REQUIRED(all.mutex) {
  const std::string no_device = absl::StrCat("no device ", NameOf(where), " in this process");
  if (where.index() < 0) {
    return absl::NotFoundError(absl::StrCat(no_device, ": numbers begin with 0"));
  }
  std::string known = "host";
  for (const auto& device : all.others) absl::StrAppend(&known, ", ", NameOf(device->where()));
  std::string cure;
  if (where.kind() == ::verbena::Device::Kind::kCuda) {
    cure =
        all.no_gpus.empty() ? "; UseGpus() makes GPUs known" : "; UseGpus() said: " + all.no_gpus;
  }
  return absl::NotFoundError(absl::StrCat(no_device, ", which knows ", known, cure));
}

}  // namespace

absl::StatusOr<Device*> FindDevice(::verbena::Device where) {
  if (where.kind() == ::verbena::Device::Kind::kHost) return &HostDevice();
  Devices& all = All();
  absl::ReaderMutexLock lock(&all.mutex);
  if (Device* const device = Find(all, where)) return device;
  return NoDevice(all, where);
}

void SayNoGpus(std::string why) {
  Devices& all = All();
  absl::MutexLock lock(&all.mutex);
  all.no_gpus = std::move(why);
}

std::string NameOf(::verbena::Device where) {
  switch (where.kind()) {
    case ::verbena::Device::Kind::kHost:
      return "host";
    case ::verbena::Device::Kind::kCuda:
      return absl::StrCat("cuda:", where.index());
    case ::verbena::Device::Kind::kFake:
      return absl::StrCat("fake:", where.index());
  }
  return absl::StrCat("device ", static_cast<int>(where.kind()), ":", where.index());
}

void RegisterDevice(std::unique_ptr<Device> device) {
  Devices& all = All();
  absl::MutexLock lock(&all.mutex);
  VERBENA_CHECK(Find(all, device->where()) == nullptr, NameOf(device->where()),
                " is registered already");
  all.others.push_back(std::move(device));
}

bool Wanders(const void* address) {
  Devices& all = All();
  absl::ReaderMutexLock lock(&all.mutex);
  return std::any_of(all.others.begin(), all.others.end(),
                     [address](const auto& device) { return device->Wanders(address); });
}

Device* ImporterFor(::verbena::Device::Kind kind, const Export& from_peer, Device& destination) {
  if (kind == ::verbena::Device::Kind::kHost) return &HostDevice();
  if (destination.where().kind() == kind) return &destination;
  Devices& all = All();
  absl::ReaderMutexLock lock(&all.mutex);
  Device* any = nullptr;
  for (const auto& device : all.others) {
    if (device->where().kind() != kind) continue;
    if (device->hardware() == from_peer.hardware) return device.get();
    if (any == nullptr) any = device.get();
  }
  return any;
}

}  // namespace verbena::memory
