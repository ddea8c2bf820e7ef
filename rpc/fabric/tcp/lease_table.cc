#include "rpc/fabric/tcp/lease_table.h"

#include <utility>

#include "rpc/base/check.h"
#include "rpc/fabric/tcp/sockets.h"

namespace verbena::fabric::tcp {

RemoteKey LeaseTable::Add(LeaseSlot slot, LinkId link, Lane lane, const memory::RegionRef& region,
                          const std::byte* data, size_t bytes) {
  if (rows_.size() <= slot.index) rows_.resize(slot.index + 1);
  Row& row = rows_[slot.index];
  VERBENA_CHECK(!row.live && row.copies == 0, "lease slot ", slot.index, " is in use");
  row = Row{slot, Random(), link, lane, region, data, bytes, true, 0, false};
  RemoteKey key;
  key.words = {slot.word(), row.secret, 0, 0};
  return key;
}

const LeaseTable::Row* LeaseTable::Find(const Request& request, LinkId link, Lane lane,
                                        Error& error) const {
  const Row* row = RowOf(LeaseSlot::FromWord(request.key[0]));
  const bool granted = row != nullptr && row->live && row->secret == request.key[1] &&
                       row->link == link && row->lane == lane;
  if (!granted) {
    error = Error::kLeaseLost;
    return nullptr;
  }
  if (request.offset > row->bytes || request.bytes > row->bytes - request.offset) {
    error = Error::kOutOfBounds;
    return nullptr;
  }
  error = Error::kOk;
  return row;
}

bool LeaseTable::Live(LeaseSlot slot) const {
  const Row* row = RowOf(slot);
  return row != nullptr && row->live;
}

bool LeaseTable::Revoke(LeaseSlot slot) {
  Row* row = RowOf(slot);
  if (row == nullptr) return true;
  End(*row);
  row->revoking = row->copies > 0;
  return !row->revoking;
}

void LeaseTable::Void(LinkId link, const Lane* lane) {
  for (Row& row : rows_) {
    if (row.live && row.link == link && (lane == nullptr || row.lane == *lane)) End(row);
  }
}

void LeaseTable::BeginCopy(LeaseSlot slot) {
  Row* row = RowOf(slot);
  VERBENA_CHECK(row != nullptr && row->live);
  ++row->copies;
}

bool LeaseTable::EndCopy(LeaseSlot slot) {
  Row* row = RowOf(slot);
  VERBENA_CHECK(row != nullptr && row->copies > 0);
  if (--row->copies > 0) return false;
  if (!row->live) row->region.reset();
  return std::exchange(row->revoking, false);
}

void LeaseTable::End(Row& row) {
  row.live = false;
  if (row.copies == 0) row.region.reset();
}

LeaseTable::Row* LeaseTable::RowOf(LeaseSlot slot) {
  return const_cast<Row*>(static_cast<const LeaseTable*>(this)->RowOf(slot));
}

const LeaseTable::Row* LeaseTable::RowOf(LeaseSlot slot) const {
  if (slot.index >= rows_.size()) return nullptr;
  const Row& row = rows_[slot.index];
  return row.slot == slot ? &row : nullptr;
}

uint64_t LeaseTable::Random() {
  // A call into the kernel for every 32 leases.
  if (random_.empty()) {
    random_.resize(32);
    FillRandom(random_.data(), random_.size() * sizeof(uint64_t));
  }
  const uint64_t word = random_.back();
  random_.pop_back();
  return word;
}

}  // namespace verbena::fabric::tcp
