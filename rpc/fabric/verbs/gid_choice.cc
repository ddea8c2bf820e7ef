#include "rpc/fabric/verbs/gid_choice.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace verbena::fabric::verbs {
namespace {

// More rows than this are counted, not named: a table may have hundreds.
constexpr size_t kNamedMax = 6;

constexpr uint16_t kFullMember = 0x8000;
constexpr uint16_t kDefaultPkey = 0xffff;

bool IsZero(const GidBytes& gid) { return gid == GidBytes{}; }

bool IsLinkLocal(const GidBytes& gid) {
  if (IsIpv4(gid)) return gid[12] == 169 && gid[13] == 254;
  return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

std::optional<GidBytes> AddressOf(absl::string_view ip) {
  const std::string text(ip.substr(0, ip.find('%')));
  GidBytes bytes{};
  if (inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1) return bytes;
  bytes[10] = bytes[11] = 0xff;
  if (inet_pton(AF_INET, text.c_str(), bytes.data() + 12) == 1) return bytes;
  return std::nullopt;
}

bool SamePrefix(const GidBytes& a, const GidBytes& b, int bits) {
  const int whole = bits / 8;
  if (std::memcmp(a.data(), b.data(), static_cast<size_t>(whole)) != 0) return false;
  if (bits % 8 == 0) return true;
  const auto at = static_cast<size_t>(whole);
  return ((a[at] ^ b[at]) >> (8 - bits % 8)) == 0;
}

// Smaller is better; compared member by member.
struct Rank {
  bool unusable;  // the interface is down
  bool foreign;   // it is not in this network namespace
  bool old;       // RoCE v1
  bool alien;     // IPv4 where the peer's is IPv6, or the other way
  bool elsewhere;
  int scope;  // 0 IPv4, 1 global IPv6, 2 link-local
  int index;

  auto Members() const { return std::tie(unusable, foreign, old, alien, elsewhere, scope, index); }
};

Rank RankOf(const GidRow& row, const std::optional<GidBytes>& peer) {
  Rank rank{};
  rank.index = row.index;
  if (row.kind == GidKind::kInfiniBand) return rank;
  rank.foreign = row.netdev.empty();
  rank.unusable = !rank.foreign && !row.netdev_up;
  rank.old = row.kind == GidKind::kRoceV1;
  rank.alien = peer.has_value() && IsIpv4(row.gid) != IsIpv4(*peer);
  const int bits = row.prefix_bits <= 128 ? row.prefix_bits : 0;
  rank.elsewhere = peer.has_value() && (bits == 0 || !SamePrefix(row.gid, *peer, bits));
  rank.scope = IsLinkLocal(row.gid) ? 2 : IsIpv4(row.gid) ? 0 : 1;
  return rank;
}

std::string DownText(const GidRow& row) {
  return absl::StrCat(row.netdev, " is down (ip link set ", row.netdev, " up)");
}

// Why `passed` came after `best`.
std::string Against(const Rank& passed, const Rank& best, const GidRow& row) {
  if (passed.unusable != best.unusable) return DownText(row);
  if (passed.foreign != best.foreign) return "not in this network namespace";
  if (passed.old != best.old) return "RoCE v1";
  if (passed.alien != best.alien) return IsIpv4(row.gid) ? "IPv4" : "IPv6";
  if (passed.elsewhere != best.elsewhere) return "not in the peer's subnet";
  if (passed.scope != best.scope) return passed.scope == 2 ? "link-local" : "IPv6";
  return "a higher index";
}

GidChoice Wished(absl::Span<const GidRow> table, int wish) {
  for (size_t i = 0; i < table.size(); ++i) {
    const GidRow& row = table[i];
    if (row.index != wish || IsZero(row.gid)) continue;
    if (RankOf(row, std::nullopt).unusable) {
      return {-1, absl::StrCat("GID ", Describe(row), ", which was asked for: ", DownText(row))};
    }
    return {static_cast<int>(i), absl::StrCat("GID ", Describe(row), ", which was asked for")};
  }
  std::string there;
  for (const GidRow& row : table) absl::StrAppend(&there, there.empty() ? "" : ", ", row.index);
  return {-1, absl::StrCat("no GID ", wish,
                           ", which was asked for (VERBENA_VERBS_GID_INDEX); there are: ",
                           there.empty() ? "none" : there)};
}

}  // namespace

bool IsIpv4(const GidBytes& gid) {
  static constexpr GidBytes kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.data(), kMapped.data(), 12) == 0;
}

GidChoice ChooseGid(absl::Span<const GidRow> table, int wish, absl::string_view peer_ip) {
  if (wish >= 0) return Wished(table, wish);
  const std::optional<GidBytes> peer = AddressOf(peer_ip);
  std::vector<std::pair<Rank, size_t>> order;
  for (size_t i = 0; i < table.size(); ++i) {
    if (!IsZero(table[i].gid)) order.emplace_back(RankOf(table[i], peer), i);
  }
  if (order.empty()) {
    return {-1, "no GID: its interface has no address (ip link set DEV up; ip addr add ...)"};
  }
  std::sort(order.begin(), order.end(),
            [](const auto& a, const auto& b) { return a.first.Members() < b.first.Members(); });
  const auto& [best, at] = order.front();
  if (best.unusable) return {-1, absl::StrCat("no GID: ", DownText(table[at]))};
  GidChoice choice{static_cast<int>(at), absl::StrCat("GID ", Describe(table[at]))};
  for (size_t i = 1; i < order.size(); ++i) {
    if (i > kNamedMax) {
      absl::StrAppend(&choice.why, ", and ", order.size() - i, " more");
      break;
    }
    const GidRow& row = table[order[i].second];
    absl::StrAppend(&choice.why, i == 1 ? "; passed over: " : ", ", Describe(row), ": ",
                    Against(order[i].first, best, row));
  }
  return choice;
}

std::string GidText(const GidBytes& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, gid.data(), text, sizeof(text));
  return text;
}

std::string Describe(const GidRow& row) {
  const absl::string_view kind = row.kind == GidKind::kInfiniBand ? "InfiniBand"
                                 : row.kind == GidKind::kRoceV1   ? "RoCE v1"
                                                                  : "RoCE v2";
  return absl::StrCat(row.index, " (", GidText(row.gid), ", ", kind, row.netdev.empty() ? "" : ", ",
                      row.netdev, ")");
}

PkeyChoice ChoosePkey(absl::Span<const uint16_t> table, int wish) {
  const auto worth = [wish](uint16_t pkey) {
    const bool full = (pkey & kFullMember) != 0;
    if ((pkey & ~kFullMember) == 0) return 0;  // no partition
    if (wish >= 0) return (pkey ^ wish) & 0x7fff ? 0 : full ? 2 : 1;
    return pkey == kDefaultPkey ? 3 : full ? 2 : 1;
  };
  PkeyChoice best;
  int best_worth = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    if (worth(table[i]) <= best_worth) continue;
    best_worth = worth(table[i]);
    best.index = static_cast<int>(i);
    best.pkey = table[i];
  }
  const auto text = [](int pkey) { return absl::StrCat("0x", absl::Hex(pkey, absl::kZeroPad4)); };
  if (best.index >= 0) {
    best.why = absl::StrCat("pkey ", text(best.pkey), " at index ", best.index,
                            best.pkey & kFullMember ? "" : ", as limited member");
    return best;
  }
  best.why =
      wish >= 0 ? absl::StrCat("no pkey ", text(wish), ", which was asked for (VERBENA_VERBS_PKEY)")
                : std::string("no pkey: the subnet manager gave it no partition");
  std::string there;
  for (uint16_t pkey : table) {
    if (pkey != 0) absl::StrAppend(&there, there.empty() ? "; there are: " : ", ", text(pkey));
  }
  best.why += there;
  return best;
}

}  // namespace verbena::fabric::verbs
