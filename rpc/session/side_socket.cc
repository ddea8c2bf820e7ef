#include "rpc/session/side_socket.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rpc/base/fork.h"
#include "rpc/session/random.h"

namespace verbena::session {
namespace {

constexpr int kBacklog = 1024;
// Names that one start looks at; the next looks at more.
constexpr int kStaleLookedMax = 4096;
constexpr uint32_t kDescriptorsMark = 0x53444656;  // "VFDS"

struct UnixAddress {
  sockaddr_un address{};
  socklen_t bytes = 0;
};

absl::StatusOr<UnixAddress> MakeAddress(const std::string& name, bool abstract) {
  UnixAddress result;
  result.address.sun_family = AF_UNIX;
  const size_t room = sizeof(result.address.sun_path) - 1;
  if (name.empty() || name.size() > room || name.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("a unix socket's name of ", name.size(), " bytes, at most ", room));
  }
  std::memcpy(result.address.sun_path + (abstract ? 1 : 0), name.data(), name.size());
  result.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

absl::StatusOr<UniqueFd> UnixSocket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return absl::ResourceExhaustedError(absl::StrCat("socket: ", std::strerror(errno)));
  CloseInForkChild(fd.get());
  return fd;
}

absl::StatusOr<UniqueFd> ListenOn(const std::string& name, bool abstract) {
  absl::StatusOr<UnixAddress> address = MakeAddress(name, abstract);
  if (!address.ok()) return address.status();
  absl::StatusOr<UniqueFd> fd = UnixSocket();
  if (!fd.ok()) return fd.status();
  if (::bind(fd->get(), reinterpret_cast<sockaddr*>(&address->address), address->bytes) != 0 ||
      ::listen(fd->get(), kBacklog) != 0) {
    return absl::UnavailableError(absl::StrCat(name, ": ", std::strerror(errno)));
  }
  return fd;
}

absl::StatusOr<UniqueFd> ConnectTo(const std::string& name, bool abstract) {
  absl::StatusOr<UnixAddress> address = MakeAddress(name, abstract);
  if (!address.ok()) return address.status();
  absl::StatusOr<UniqueFd> fd = UnixSocket();
  if (!fd.ok()) return fd.status();
  if (::connect(fd->get(), reinterpret_cast<sockaddr*>(&address->address), address->bytes) != 0) {
    return absl::UnavailableError(absl::StrCat(name, ": ", std::strerror(errno)));
  }
  return fd;
}

// "verbena-<process>-<16 hexadecimal digits>".
bool ParseName(absl::string_view name, int64_t& pid) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '-');
  return parts.size() == 3 && parts[0] == "verbena" && absl::SimpleAtoi(parts[1], &pid) &&
         pid > 0 && pid <= INT32_MAX && parts[2].size() == 16 &&
         parts[2].find_first_not_of("0123456789abcdef") == absl::string_view::npos;
}

bool NobodyListens(const std::string& path) {
  const absl::StatusOr<UnixAddress> address = MakeAddress(path, false);
  const absl::StatusOr<UniqueFd> fd = UnixSocket();
  if (!address.ok() || !fd.ok()) return false;
  return ::connect(fd->get(), reinterpret_cast<const sockaddr*>(&address->address),
                   address->bytes) != 0 &&
         errno == ECONNREFUSED;
}

void CloseAll(const std::vector<int>& fds) {
  for (int fd : fds) ::close(fd);
}

// Every descriptor that came, however many control messages it came in.
std::vector<int> TakeDescriptors(msghdr& header) {
  std::vector<int> fds;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      fds.push_back(fd);
    }
  }
  return fds;
}

}  // namespace

absl::StatusOr<std::string> RuntimeDirectory(const std::string& configured) {
  std::string path = configured;
  if (path.empty()) {
    const char* runtime = std::getenv("XDG_RUNTIME_DIR");
    path = absl::StrCat(runtime != nullptr && *runtime == '/' ? runtime : "/tmp", "/verbena-",
                        ::geteuid());
  }
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::UnavailableError(absl::StrCat("cannot make ", path, ": ", std::strerror(errno)));
  }
  struct stat info;
  if (::lstat(path.c_str(), &info) != 0) {
    return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(absl::StrCat(path, " must be a directory of user ",
                                                    ::geteuid(),
                                                    " that is closed to others (mode 0700)"));
  }
  return path;
}

void RemoveStaleSockets(const std::string& directory) {
  std::error_code error;
  std::filesystem::directory_iterator it(directory, error), end;
  for (int looked = 0; !error && it != end && looked < kStaleLookedMax; it.increment(error)) {
    const std::string name = it->path().filename().string();
    int64_t pid = 0;
    if (!ParseName(name, pid)) continue;
    ++looked;
    struct stat info;
    const bool mine = ::lstat(it->path().c_str(), &info) == 0 && S_ISSOCK(info.st_mode) &&
                      info.st_uid == ::geteuid();
    const bool gone = ::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH;
    if (!mine || !gone) continue;
    if (NobodyListens(it->path().string())) ::unlink(it->path().c_str());
  }
}

absl::StatusOr<SideListener> ListenAside(const std::string& directory) {
  SideListener side;
  const std::string name = absl::StrCat("verbena-", ::getpid(), "-", RandomHex(8));
  const absl::StatusOr<std::string> path = RuntimeDirectory(directory);
  if (path.ok()) {
    RemoveStaleSockets(*path);
    // Gets its name when it listens: whoever finds one that refuses knows that it is stale.
    const std::string unfinished = absl::StrCat(*path, "/.", name);
    absl::StatusOr<UniqueFd> fd = ListenOn(unfinished, false);
    if (fd.ok() && ::rename(unfinished.c_str(), absl::StrCat(*path, "/", name).c_str()) != 0) {
      fd = absl::UnavailableError(absl::StrCat(unfinished, ": ", std::strerror(errno)));
      ::unlink(unfinished.c_str());
    }
    if (fd.ok()) {
      side.by_path = *std::move(fd);
      side.path = absl::StrCat(*path, "/", name);
    } else {
      side.reason = std::string(fd.status().message());
    }
  } else {
    side.reason = std::string(path.status().message());
  }
  absl::StatusOr<UniqueFd> fd = ListenOn(name, true);
  if (fd.ok()) {
    side.by_abstract = *std::move(fd);
    side.abstract_name = name;
  }
  if (!side.by_path && !side.by_abstract) {
    return absl::UnavailableError(
        absl::StrCat("no side socket: ", side.reason, "; ", fd.status().message()));
  }
  return side;
}

absl::StatusOr<UniqueFd> ConnectAside(const wire::Hello& reply) {
  absl::StatusOr<UniqueFd> fd = absl::UnavailableError("the server has no side socket");
  if (!reply.side_path.empty()) fd = ConnectTo(reply.side_path, false);
  if (!fd.ok() && !reply.side_abstract.empty()) {
    absl::StatusOr<UniqueFd> second = ConnectTo(reply.side_abstract, true);
    if (second.ok()) {
      fd = std::move(second);
    } else {
      fd = absl::UnavailableError(
          absl::StrCat("side socket: ", fd.status().message(), "; ", second.status().message()));
    }
  }
  if (!fd.ok()) return fd.status();
  if (absl::Status status = CheckPeerUser(fd->get()); !status.ok()) return status;
  const auto& token = reply.side_token;
  if (::send(fd->get(), token.data(), token.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(token.size())) {
    return absl::UnavailableError(absl::StrCat("side socket: ", std::strerror(errno)));
  }
  return fd;
}

uid_t OverflowUid() {
  static const uid_t uid = [] {
    std::ifstream file("/proc/sys/kernel/overflowuid");
    uid_t value = 65534;
    file >> value;
    return file ? value : uid_t{65534};
  }();
  return uid;
}

absl::Status CheckPeerUser(const ucred& peer, uid_t self, uid_t overflow) {
  if (peer.uid == overflow) {
    return absl::PermissionDeniedError(
        absl::StrCat("the peer's user is unknown here (", overflow,
                     "): it is nobody, or in another user namespace"));
  }
  if (peer.uid != self) {
    return absl::PermissionDeniedError(
        absl::StrCat("the peer runs as user ", peer.uid, ", this process as ", self));
  }
  return absl::OkStatus();
}

absl::Status CheckPeerUser(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
    return absl::PermissionDeniedError(absl::StrCat("SO_PEERCRED: ", std::strerror(errno)));
  }
  return CheckPeerUser(peer, ::geteuid(), OverflowUid());
}

absl::Status SendDescriptors(int socket, const std::vector<int>& fds) {
  if (fds.empty() || fds.size() > wire::kHelloDescriptorsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(fds.size(), " descriptors, at most ", wire::kHelloDescriptorsMax));
  }
  uint32_t text[2] = {kDescriptorsMark, static_cast<uint32_t>(fds.size())};
  iovec bytes{text, sizeof(text)};
  alignas(cmsghdr) char room[CMSG_SPACE(wire::kHelloDescriptorsMax * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = room;
  header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
  cmsghdr* const c = CMSG_FIRSTHDR(&header);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  if (::sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) !=
      static_cast<ssize_t>(sizeof(text))) {
    return absl::UnavailableError(
        absl::StrCat("descriptors on the side socket: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int>> ReceiveDescriptors(int socket, size_t count) {
  uint32_t text[2] = {0, 0};
  iovec bytes{text, sizeof(text)};
  // Room for one more than may come, so that a flood shows; the kernel closes what has no room.
  alignas(cmsghdr) char room[CMSG_SPACE((wire::kHelloDescriptorsMax + 1) * sizeof(int))];
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = room;
  header.msg_controllen = sizeof(room);
  const ssize_t n = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) {
    return absl::UnavailableError(
        absl::StrCat("descriptors from the side socket: ", std::strerror(errno)));
  }
  std::vector<int> fds = TakeDescriptors(header);
  absl::Status status;
  if ((header.msg_flags & MSG_CTRUNC) != 0 || fds.size() > wire::kHelloDescriptorsMax) {
    status = absl::InvalidArgumentError(
        absl::StrCat("more than ", wire::kHelloDescriptorsMax, " descriptors on the side socket"));
  } else if (n != static_cast<ssize_t>(sizeof(text)) || text[0] != kDescriptorsMark) {
    status = absl::InvalidArgumentError("not a message with descriptors on the side socket");
  } else if (text[1] != count || fds.size() != count) {
    status = absl::InvalidArgumentError(
        absl::StrCat(fds.size(), " descriptors on the side socket, ", text[1], " said there, ",
                     count, " said on the stream"));
  }
  if (status.ok()) return fds;
  CloseAll(fds);
  return status;
}

UniqueFd PeerPidfd(int socket) {
#ifndef SO_PEERPIDFD
  constexpr int SO_PEERPIDFD =
      77;  // Linux 6.5: the very process, even if its number was used again
#endif
  int fd = -1;
  socklen_t bytes = sizeof(fd);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &bytes) == 0) return UniqueFd(fd);
  ucred peer{};
  bytes = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || peer.pid <= 0)
    return UniqueFd();
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
}

}  // namespace verbena::session
