#include "rpc/fabric/shm/side_channel.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/base/fork.h"
#include "rpc/base/log.h"
#include "rpc/memory/device_regions.h"

namespace verbena::fabric::shm {
namespace {

// Of all links: descriptors of devices' memory that are kept, to map it for another device too.
std::atomic<uint64_t> device_descriptors{0};

rlimit DescriptorLimit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit;
}

// The other half is for what cannot go on without: host memory of peers, stages among it, and
// whatever else the process has. Device memory is read without a descriptor too.
uint64_t DeviceDescriptorsMax() { return DescriptorLimit().rlim_cur / 2; }

void CloseDescriptor(int& fd, Device::Kind kind) {
  if (fd < 0) return;
  if (kind != Device::Kind::kHost) device_descriptors.fetch_sub(1, std::memory_order_relaxed);
  close(std::exchange(fd, -1));
}

constexpr uint32_t kMagic = 0x53425645;            // "EVBS"
constexpr uint32_t kWithdrawalMagic = 0x53425657;  // "WVBS"

// On one host: the machine's own byte order. The socket is a stream: all messages are as long.
struct ExportMessage {
  uint32_t magic = kMagic;
  uint8_t device_kind = 0;  // verbena::Device::Kind
  uint8_t way = 0;          // memory::ExportWay
  uint16_t reserved = 0;
  uint64_t buffer = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  std::array<std::byte, 16> hardware{};  // 0 for host memory, as is
  std::array<std::byte, 64> handle{};    // this, but for kIpc
};
static_assert(sizeof(ExportMessage) == 112);

// Whether a device of that kind exports that way, with so many descriptors.
absl::Status CheckWay(const ExportMessage& message, int fds) {
  const auto kind = static_cast<Device::Kind>(message.device_kind);
  const auto way = static_cast<memory::ExportWay>(message.way);
  const bool gpu = kind == Device::Kind::kCuda;
  if (!gpu && kind != Device::Kind::kHost && kind != Device::Kind::kFake) {
    return absl::InvalidArgumentError(
        absl::StrCat("shm: an export of device kind ", message.device_kind));
  }
  const bool known =
      gpu ? way == memory::ExportWay::kIpc || way == memory::ExportWay::kVmmDescriptor
          : way == memory::ExportWay::kMemfd;
  const int needs = way == memory::ExportWay::kIpc ? 0 : 1;
  if (known && fds == needs) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("shm: an export of device kind ",
                                                 message.device_kind, " by way ", message.way,
                                                 " with ", fds, " descriptors"));
}

uid_t OverflowUid() {
  unsigned uid = 65534;
  if (FILE* file = fopen("/proc/sys/kernel/overflowuid", "re")) {
    if (fscanf(file, "%u", &uid) != 1) uid = 65534;
    fclose(file);
  }
  return uid;
}

// One whole message, and its descriptor if it has one. `lost`: it had one, and this process has no
// room for it. NOT_FOUND: nothing has come.
absl::Status Receive(int socket, ExportMessage& message, int& fd, bool& lost) {
  alignas(cmsghdr) char room[CMSG_SPACE(4 * sizeof(int))];
  iovec part{&message, sizeof message};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = room;
  header.msg_controllen = sizeof room;
  const ssize_t n = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return absl::NotFoundError("no export");
  if (n <= 0) return absl::UnavailableError("shm: the peer's side socket is closed");
  int count = 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < fds; ++i, ++count) {
      int got;
      memcpy(&got, CMSG_DATA(c) + i * sizeof(int), sizeof got);
      if (count == 0) {
        fd = got;
      } else {
        close(got);
      }
    }
  }
  lost = count == 0 && (header.msg_flags & MSG_CTRUNC) != 0;
  const bool exports = message.magic == kMagic && count <= 1;
  const bool withdraws = message.magic == kWithdrawalMagic && count == 0;
  if (n != sizeof message || (!exports && !withdraws)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shm: neither an export nor a withdrawal: mark ", absl::Hex(message.magic), ", ", n,
        " bytes with ", count, " descriptors; they have ", sizeof message, " bytes with 1 or 0"));
  }
  return exports ? CheckWay(message, lost ? 1 : count) : absl::OkStatus();
}

}  // namespace

SideChannel::~SideChannel() {
  if (fd_ >= 0) {
    ForgetForkChild(fd_);
    close(fd_);
  }
  if (peer_pidfd_ >= 0) close(peer_pidfd_);
  for (auto& [buffer, exported] : exports_) CloseDescriptor(exported.what.fd, exported.kind);
}

absl::Status SideChannel::Adopt(int& socket) {
  if (socket < 0) return absl::FailedPreconditionError("shm: no unix socket to the peer");
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("shm: SO_PEERCRED: ", strerror(errno)));
  }
  if (peer.uid != geteuid() || peer.uid == OverflowUid()) {
    return absl::PermissionDeniedError(
        absl::StrCat("shm: the peer runs as user ", peer.uid, ", this process as ", geteuid()));
  }
  peer_pid_ = peer.pid;
  if (peer.pid > 0) peer_pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0));
  fd_ = std::exchange(socket, -1);
  // A child that held it would keep the peer from hearing of this process's end.
  CloseInForkChild(fd_);
  return absl::OkStatus();
}

absl::Status SideChannel::SendExport(const memory::Region& region) {
  // The peer may have no room before, or have the same still.
  if (absl::Status status = SendWithdrawals(); !status.ok()) return status;
  ExportMessage message;
  message.buffer = region.buffer_id();
  if (region.device().host_accessible()) {
    message.offset = region.fd_offset();
    message.bytes = region.bytes();
    return Send(&message, sizeof message, region.fd());
  }
  if (region.kind() == memory::RegionKind::kForeign) {
    const auto extents = region.device().Describe(region.base(), region.bytes());
    if (extents.ok() && extents->size() > 1) {
      return absl::FailedPreconditionError(absl::StrCat("shm: ", region.bytes(), " bytes lie in ",
                                                        extents->size(), " mappings of a device"));
    }
  }
  auto exported = region.device().ExportTo(memory::ExtentOf(region), memory::ExportWay::kHostPeer);
  if (!exported.ok()) return exported.status();
  message.device_kind = static_cast<uint8_t>(region.device().where().kind());
  message.way = static_cast<uint8_t>(exported->way);
  message.offset = exported->offset;
  message.bytes = exported->bytes;
  message.hardware = exported->hardware;
  message.handle = exported->handle;
  const absl::Status status = Send(&message, sizeof message, exported->fd);
  if (exported->fd >= 0) close(exported->fd);
  return status;
}

absl::Status SideChannel::Send(const void* message, size_t bytes, int fd) {
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof fd)] = {};
  iovec part{const_cast<void*>(message), bytes};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (fd >= 0) {
    header.msg_control = room;
    header.msg_controllen = sizeof room;
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  // A peer that takes no exports shall not hold up the setup thread.
  const ssize_t n = sendmsg(fd_, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n == static_cast<ssize_t>(bytes)) return absl::OkStatus();
  const std::string text =
      absl::StrCat("shm: export of a slab: ", n < 0 ? strerror(errno) : "cut short");
  const bool gone = n < 0 && (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN);
  return gone ? absl::UnavailableError(text) : absl::ResourceExhaustedError(text);
}

void SideChannel::Withdraw(uint64_t buffer) {
  withdrawals_.push_back(buffer);
  SendWithdrawals().IgnoreError();  // else they go with the next export, or the link
}

absl::Status SideChannel::SendWithdrawals() {
  size_t sent = 0;
  absl::Status status;
  for (; sent < withdrawals_.size(); ++sent) {
    ExportMessage message;
    message.magic = kWithdrawalMagic;
    message.buffer = withdrawals_[sent];
    if (status = Send(&message, sizeof message, -1); !status.ok()) break;
  }
  withdrawals_.erase(withdrawals_.begin(), withdrawals_.begin() + static_cast<ptrdiff_t>(sent));
  return status;
}

absl::Status SideChannel::Take(memory::Device& host, absl::Span<const Want> wants, Taken& taken) {
  absl::Status status = TakeMessages(taken);
  for (const Want& want : wants) {
    ImportRef memory = want.mapped;
    const auto known = exports_.find(want.buffer);
    // What was mapped is of an export that was withdrawn since, and made anew.
    if (known != exports_.end() && !known->second.mapped) memory = nullptr;
    if (memory == nullptr) {
      memory = Map(want, host, taken.not_mapped);
      const bool of_host = known != exports_.end() && known->second.kind == Device::Kind::kHost;
      if (memory == nullptr && known != exports_.end() && (!of_host || known->second.lost)) {
        taken.unmapped.push_back({want.buffer, want.into, of_host});
      }
      if (memory == nullptr) continue;
      taken.imports.push_back({want.buffer, want.into, memory});
    }
    if (want.bytes != 0) memory->Populate(want.offset, want.bytes);
    if (!want.into->host_accessible()) memory->LockFor(*want.into);
  }
  return status;
}

ImportRef SideChannel::Map(const Want& want, memory::Device& host, absl::Status& why) {
  const auto it = exports_.find(want.buffer);
  if (it == exports_.end()) return nullptr;
  Exported& exported = it->second;
  if (exported.lost) return nullptr;  // as was said
  const bool of_host = exported.kind == Device::Kind::kHost;
  memory::Device* const importer =
      of_host ? &host : memory::ImporterFor(exported.kind, exported.what, *want.into);
  if (importer == nullptr) {
    why.Update(absl::NotFoundError("shm: the memory is on a device that this process has not"));
    return nullptr;
  }
  memory::Export what = exported.what;
  if (of_host) {
    if (what.fd < 0) return nullptr;
    exported.what.fd = -1;  // ImportOnce takes it
  } else if (what.fd >= 0) {
    what.fd = fcntl(what.fd, F_DUPFD_CLOEXEC, 0);  // another device of ours may want it too
    if (what.fd < 0) {
      exported.lost = true;
      SayNoDescriptor();
      return nullptr;
    }
  }
  auto mapped = ImportOnce(*importer, what);
  why.Update(mapped.status());
  exported.mapped = exported.mapped || mapped.ok();
  return mapped.ok() ? *std::move(mapped) : nullptr;
}

absl::Status SideChannel::Forget(uint64_t buffer, Taken& taken) {
  const auto it = exports_.find(buffer);
  if (it == exports_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("shm: a withdrawal of buffer ", buffer,
                                                   ", which is none of the ", exports_.size(),
                                                   " that the peer exports"));
  }
  if (it->second.mapped || it->second.lost) taken.withdrawn.push_back(buffer);
  CloseDescriptor(it->second.what.fd, it->second.kind);
  exports_.erase(it);
  return absl::OkStatus();
}

void SideChannel::SayNoDescriptor() {
  if (std::exchange(said_no_descriptor_, true)) return;
  const rlimit limit = DescriptorLimit();
  VERBENA_LOG(kWarning,
              "shm: no descriptor is left for memory that a peer exports: ", "RLIMIT_NOFILE is ",
              limit.rlim_cur, ", its hard limit ", limit.rlim_max, ", and ",
              device_descriptors.load(std::memory_order_relaxed), " of at most ",
              DeviceDescriptorsMax(), " are kept for device memory, which is read by way of ",
              "stages now; READs of host memory without one fail");
}

absl::Status SideChannel::Announce(const memory::Export& what, Device::Kind kind, bool lost) {
  if (exports_.size() == kExportsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("shm: the peer exports more than ", kExportsMax, " slabs"));
  }
  if (lost) SayNoDescriptor();
  if (what.way == memory::ExportWay::kMemfd && !lost) {
    const auto size = CheckSealed(what.fd, F_SEAL_SHRINK);
    if (!size.ok()) return size.status();
    if (what.bytes == 0 || what.offset > *size || what.bytes > *size - what.offset ||
        what.offset % 4096 != 0) {
      return absl::InvalidArgumentError(absl::StrCat("shm: export of [", what.offset, ", +",
                                                     what.bytes, ") of a memfd of ", *size));
    }
  }
  const auto [it, inserted] = exports_.emplace(what.buffer_id, Exported{kind, what, false, lost});
  if (!inserted) {
    return absl::InvalidArgumentError(
        absl::StrCat("shm: buffer ", what.buffer_id, " exported twice"));
  }
  Exported& exported = it->second;
  const bool useless = kind != Device::Kind::kHost && what.fd >= 0 &&
                       memory::ImporterFor(kind, what, memory::HostDevice()) == nullptr;
  if (useless) close(std::exchange(exported.what.fd, -1));
  if (kind == Device::Kind::kHost || exported.what.fd < 0) return absl::OkStatus();
  if (device_descriptors.fetch_add(1, std::memory_order_relaxed) >= DeviceDescriptorsMax()) {
    CloseDescriptor(exported.what.fd, kind);
    exported.lost = true;
    SayNoDescriptor();
  }
  return absl::OkStatus();
}

absl::Status SideChannel::TakeMessages(Taken& taken) {
  for (int i = 0; i < kMessagesPerTake; ++i) {
    absl::Status status = TakeOne(taken);
    if (absl::IsNotFound(status)) return absl::OkStatus();
    if (!status.ok()) return status;
  }
  taken.more = true;
  return absl::OkStatus();
}

absl::Status SideChannel::TakeOne(Taken& taken) {
  ExportMessage message;
  message.magic = 0;
  int fd = -1;
  bool lost = false;
  absl::Status status = Receive(fd_, message, fd, lost);
  if (status.ok() && message.magic == kWithdrawalMagic) return Forget(message.buffer, taken);
  if (status.ok()) {
    memory::Export from_peer;
    from_peer.way = static_cast<memory::ExportWay>(message.way);
    from_peer.fd = fd;
    from_peer.offset = message.offset;
    from_peer.bytes = message.bytes;
    from_peer.buffer_id = message.buffer;
    from_peer.hardware = message.hardware;
    from_peer.handle = message.handle;
    status = Announce(from_peer, static_cast<Device::Kind>(message.device_kind), lost);
  }
  if (!status.ok() && fd >= 0) close(fd);
  return status;
}

}  // namespace verbena::fabric::shm
