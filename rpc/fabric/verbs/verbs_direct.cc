// READs that the NIC writes into a device's memory by itself. Their destinations are registered by
// jobs, once for each allocation; what cannot be is staged. Where the device does not see what a
// NIC wrote by itself, it is flushed before the READ ends, once for all READs that ended meanwhile.
#include <algorithm>
#include <utility>

#include "rpc/base/check.h"
#include "rpc/base/log.h"
#include "rpc/fabric/verbs/device_memory.h"
#include "rpc/fabric/verbs/verbs_fabric.h"

namespace verbena::fabric::verbs {

void VerbsFabric::ReadIntoDevice(ReadId id, ReadRecord& read, absl::Span<const LocalPiece> pieces) {
  const bool may = std::all_of(pieces.begin(), pieces.end(), [this](const LocalPiece& piece) {
    return piece.device->host_accessible() || domain_->MayReach(*piece.device, true);
  });
  if (!may || !options_.gpu_direct) return StageRead(id, read, pieces);
  std::vector<Unreached> unreached;
  if (PlaceDirect(read, pieces, unreached)) return PostDirect(id, read, pieces);
  if (unreached.empty()) return StageRead(id, read, pieces);
  read.registering = true;
  PostJob([this, id, domain = domain_, unreached = std::move(unreached),
           pieces = std::vector<LocalPiece>(pieces.begin(), pieces.end())]() -> Inbox::News {
    bool ok = true;
    std::vector<Domain::Pin> pins;  // until all of them are there
    for (const Unreached& one : unreached) {
      absl::StatusOr<Domain::Pin> pin = domain->RegisterDestination(*one.device, one.extent);
      ok &= pin.ok();
      if (pin.ok()) pins.push_back(*std::move(pin));
    }
    return [this, id, pieces, ok, pins = std::move(pins)] { OnDestinations(id, pieces, ok); };
  });
}

// False: some of it is not registered, or, where there is no `unreached` either, cannot be.
bool VerbsFabric::PlaceDirect(ReadRecord& read, absl::Span<const LocalPiece> pieces,
                              std::vector<Unreached>& unreached) {
  read.pieces.clear();
  read.pins.clear();
  bool known = true;
  const auto place = [&](std::byte* data, size_t bytes, Domain::Pin pin) {
    const uint64_t most = read_pace_.work_bytes();
    for (uint64_t at = 0; at < bytes; at += most) {
      const auto part = static_cast<uint32_t>(std::min<uint64_t>(most, bytes - at));
      read.pieces.push_back({reinterpret_cast<uint64_t>(data) + at, part, pin.mr()->lkey});
    }
    read.pins.push_back(std::move(pin));
  };
  for (const LocalPiece& piece : pieces) {
    if (piece.bytes == 0) continue;
    if (piece.device->host_accessible()) {
      Domain::Pin pin = domain_->Find(piece.data, piece.bytes);
      if (!pin) return unreached.clear(), false;
      place(piece.data, piece.bytes, std::move(pin));
      continue;
    }
    const absl::StatusOr<std::vector<memory::Extent>> extents =
        piece.device->Describe(piece.data, piece.bytes);
    if (!extents.ok()) return unreached.clear(), false;  // the copy says what is wrong
    std::byte* data = piece.data;
    const std::byte* const end = piece.data + piece.bytes;
    for (const memory::Extent& extent : *extents) {
      const auto bytes =
          static_cast<size_t>(std::min<const std::byte*>(end, extent.base + extent.bytes) - data);
      if (Domain::Pin pin = domain_->FindDevice(*piece.device, extent)) {
        if (known) place(data, bytes, std::move(pin));
      } else if (domain_->IsRefused(extent)) {
        return unreached.clear(), false;
      } else {
        known = false;
        unreached.push_back({piece.device, extent});
      }
      data += bytes;
    }
  }
  return known;
}

void VerbsFabric::OnDestinations(ReadId id, const std::vector<LocalPiece>& pieces, bool ok) {
  ReadRecord& read = *reads_.Find(id);
  read.registering = false;
  if (read.answered) return FinishRead(id, read);
  const End* const end = ends_.Find(read.end);
  if (end == nullptr || !end->up()) {
    read.error = Error::kLaneDown;
    return FinishRead(id, read);
  }
  std::vector<Unreached> unreached;
  if (ok && PlaceDirect(read, pieces, unreached)) return PostDirect(id, read, pieces);
  read.pieces.clear();
  read.pins.clear();
  StageRead(id, read, pieces);
}

// Its pieces have their keys.
void VerbsFabric::PostDirect(ReadId id, ReadRecord& read, absl::Span<const LocalPiece> pieces) {
  if (!TakesPath(id, read, ::verbena::Path::kGdrRead)) return;
  for (const LocalPiece& piece : pieces) {
    if (piece.bytes == 0 || piece.device->host_accessible()) continue;
    if (memory::NicAccessOf(*piece.device)->nic_facts().flushes) read.flush = piece.device;
  }
  auto& end = static_cast<ReaderEnd&>(*ends_.Find(read.end));
  end.waiting.push_back(id);
  ListReader(end);
}

// It is READ; its device may not see it yet. Its lane outlives that, as it does copies.
void VerbsFabric::Flush(ReadId id, ReadRecord& read) {
  read.copying = true;
  ++static_cast<ReaderEnd&>(*ends_.Find(read.end)).copying;
  flushes_[read.flush].waiting.push_back(id);
  StartFlush(*read.flush);
}

void VerbsFabric::StartFlush(memory::Device& device) {
  Flushes& flushes = flushes_[&device];
  if (flushes.under_way || flushes.waiting.empty()) return;
  flushes.under_way = true;
  PostJob([this, &device, ids = std::exchange(flushes.waiting, {})]() mutable -> Inbox::News {
    const absl::Status status = memory::NicAccessOf(device)->FlushNicWrites();
    if (!status.ok()) VERBENA_LOG(kWarning, "verbs: ", status.message());
    return [this, &device, ids = std::move(ids), ok = status.ok()] {
      flushes_[&device].under_way = false;
      for (const ReadId id : ids) OnCopiedOut(id, ok);
      StartFlush(device);
    };
  });
}

}  // namespace verbena::fabric::verbs
