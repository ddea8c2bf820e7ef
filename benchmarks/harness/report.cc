#include "benchmarks/harness/report.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace verbena::benchmarks {
namespace {

constexpr char kNoWindow[] = ": no undisturbed window";

double BoundIn(const Must& must, LineClass c) {
  return c == LineClass::kFar ? must.far : must.near;
}

void Judge(Line& line, double number, double bound) {
  line.must = bound;
  const bool met = line.lower_is_better ? number <= bound : number >= bound;
  line.flags.push_back(met ? "must: met" : "must: missed");
}

Line Blank(const Row& row, const char* line_class) {
  Line line;
  line.name = row.name;
  line.transport = row.transport;
  line.payload_bytes = row.payload_bytes;
  line.outstanding = row.outstanding;
  line.unit = UnitOf(row);
  line.lower_is_better = LowerIsBetter(row.metric);
  line.line_class = line_class;
  return line;
}

// Why a side has no number in a class, or in none.
void FlagMissing(Line& line, const std::string& who, const SideResult& side) {
  if (!side.skipped.empty()) {
    line.flags.push_back(absl::StrCat(who, ": skipped: ", side.skipped));
  } else if (side.kept.empty()) {
    line.flags.push_back(absl::StrCat(who, kNoWindow));
  } else {
    line.flags.push_back(absl::StrCat(who, ": no window in this class"));
  }
}

// Our numbers of one class.
void FillOurs(Line& line, const RowResult& result, LineClass c) {
  if (!result.ours.skipped.empty()) return FlagMissing(line, "ours", result.ours);
  const Summary ours = Summarize(result.ours.kept, c);
  line.windows = ours.windows;
  line.dropped = result.ours.dropped;
  line.line_ns = ours.line_ns;
  line.switches = ours.switches;
  if (ours.windows == 0) return FlagMissing(line, "ours", result.ours);
  line.value = ours.value;
  if (ours.p99 > 0) line.p99 = ours.p99;
  if (result.row.must_p99_near && c == LineClass::kNear) {
    line.flags.push_back(ours.p99 <= *result.row.must_p99_near ? "p99: met" : "p99: missed");
  }
}

void FillPeer(Line& line, const SideResult& peer, LineClass c) {
  line.peer = peer.side.peer;
  line.variant = peer.side.variant;
  const Summary theirs = Summarize(peer.kept, c);
  line.peer_windows = theirs.windows;
  line.dropped += peer.dropped;
  // One that broke off later has numbers, and a reason.
  if (theirs.windows == 0 || !peer.skipped.empty()) FlagMissing(line, "peer", peer);
  if (theirs.windows == 0) return;
  if (line.windows == 0) {
    line.line_ns = theirs.line_ns;
    line.switches = theirs.switches;
  }
  line.peer_value = theirs.value;
  if (theirs.p99 > 0) line.peer_p99 = theirs.p99;
  if (theirs.windows < 3) line.flags.push_back("few windows");
  if (!line.value || theirs.value == 0) return;
  line.ratio = *line.value / theirs.value;
  if (peer.side.must) Judge(line, *line.ratio, BoundIn(*peer.side.must, c));
}

// Neither side has a number in any class.
Line InNoClass(const RowResult& result, const SideResult* peer) {
  Line line = Blank(result.row, "");
  FlagMissing(line, "ours", result.ours);
  line.dropped = result.ours.dropped;
  if (peer == nullptr) return line;
  line.peer = peer->side.peer;
  line.variant = peer->side.variant;
  FlagMissing(line, "peer", *peer);
  line.dropped += peer->dropped;
  return line;
}

// Among the variants of one peer in one class only the best stays `best`. A variant that is in no
// class is none beside one that is.
void MarkBest(std::vector<Line>& lines) {
  std::map<std::string, Line*> best;
  std::set<std::string> classed;
  for (const Line& line : lines) {
    if (!line.line_class.empty()) classed.insert(line.peer);
  }
  for (Line& line : lines) {
    if (line.line_class.empty() && classed.count(line.peer) != 0) {
      line.best = false;
      continue;
    }
    Line*& current = best[absl::StrCat(line.peer, "/", line.line_class)];
    const auto better = [&line](const Line& than) {
      const double mine = line.peer_value.value_or(0);
      const double other = than.peer_value.value_or(0);
      return mine > 0 && (other == 0 || (line.lower_is_better ? mine < other : mine > other));
    };
    line.best = !current || better(*current);
    if (!line.best) continue;
    if (current) current->best = false;
    current = &line;
  }
}

// "ours: skipped: reason" becomes "ours: skipped", the reason goes to `reasons`.
std::string Shortened(const std::vector<std::string>& flags, std::set<std::string>& reasons) {
  constexpr char kSkipped[] = ": skipped: ";
  std::vector<std::string> out;
  for (const std::string& flag : flags) {
    const size_t at = flag.find(kSkipped);
    if (at == std::string::npos) {
      out.push_back(flag);
      continue;
    }
    out.push_back(flag.substr(0, at) + ": skipped");
    reasons.insert(flag.substr(at + sizeof(kSkipped) - 1));
  }
  return absl::StrJoin(out, "; ");
}

}  // namespace

std::vector<Line> Compare(const RowResult& result) {
  std::vector<Line> lines;
  for (const LineClass c : {LineClass::kNear, LineClass::kFar}) {
    // Where the line has no part, everything was filed under near.
    if (Classless(result.row) && c == LineClass::kFar) break;
    const char* name = result.row.same_core    ? "same core"
                       : Classless(result.row) ? "any"
                                               : LineClassName(c);
    for (const SideResult& peer : result.peers) {
      Line line = Blank(result.row, name);
      FillOurs(line, result, c);
      FillPeer(line, peer, c);
      if (line.value || line.peer_value) lines.push_back(line);
    }
    if (!result.peers.empty()) continue;
    Line line = Blank(result.row, name);
    FillOurs(line, result, c);
    if (!line.value) continue;
    if (result.row.must_alone) Judge(line, *line.value, BoundIn(*result.row.must_alone, c));
    lines.push_back(line);
  }
  for (const SideResult& peer : result.peers) {
    const bool told = std::any_of(lines.begin(), lines.end(), [&peer](const Line& line) {
      return line.peer == peer.side.peer && line.variant == peer.side.variant;
    });
    if (!told) lines.push_back(InNoClass(result, &peer));
  }
  if (lines.empty()) lines.push_back(InNoClass(result, nullptr));
  MarkBest(lines);
  return lines;
}

nlohmann::json ToJson(const Line& line) {
  const auto number = [](const std::optional<double>& v) {
    return v ? nlohmann::json(*v) : nlohmann::json(nullptr);
  };
  return {{"name", line.name},
          {"transport", line.transport},
          {"payload_bytes", line.payload_bytes},
          {"outstanding", line.outstanding},
          {"value", number(line.value)},
          {"unit", line.unit},
          {"peer", line.peer},
          {"peer_value", number(line.peer_value)},
          {"ratio", number(line.ratio)},
          {"variant", line.variant},
          {"best", line.best},
          {"class", line.line_class},
          {"line_ns", line.line_ns},
          {"switches", line.switches},
          {"p99", number(line.p99)},
          {"peer_p99", number(line.peer_p99)},
          {"must", number(line.must)},
          {"windows", line.windows},
          {"peer_windows", line.peer_windows},
          {"dropped", line.dropped},
          {"flags", line.flags}};
}

std::string Readable(double value, const std::string& unit) {
  if (unit == "ns") {
    if (value < 1e3) return absl::StrFormat("%.0f ns", value);
    if (value < 1e6) return absl::StrFormat("%.2f us", value / 1e3);
    return absl::StrFormat("%.2f ms", value / 1e6);
  }
  if (unit == "B") return absl::StrFormat("%.1f KiB", value / 1024);
  const char* suffix = unit == "B/s" ? "B/s" : unit == "1/s" ? "/s" : "";
  if (*suffix == '\0') return absl::StrFormat("%.4g", value);
  if (value >= 1e9) return absl::StrFormat("%.2f G%s", value / 1e9, suffix);
  if (value >= 1e6) return absl::StrFormat("%.2f M%s", value / 1e6, suffix);
  return absl::StrFormat("%.1f k%s", value / 1e3, suffix);
}

std::string Table(const std::vector<Line>& lines, bool all) {
  std::string out =
      absl::StrFormat("%-26s %-5s %-9s %11s %10s  %-28s %11s %10s %9s %9s  %s\n", "row", "over",
                      "class", "ours", "p99", "peer", "value", "p99", "ratio", "must", "");
  std::set<std::string> reasons;
  for (const Line& line : lines) {
    // Here, since a hidden variant's reason is told too.
    const std::string flags = Shortened(line.flags, reasons);
    if (!all && !line.best) continue;
    const auto text = [&line](const std::optional<double>& v) {
      return v ? Readable(*v, line.unit) : std::string("-");
    };
    const auto nanoseconds = [](const std::optional<double>& v) {
      return v ? Readable(*v, "ns") : std::string("-");
    };
    const auto plain = [](const std::optional<double>& v) {
      return v ? absl::StrFormat(*v < 0.1 ? "%.4f" : "%.2f", *v) : std::string("-");
    };
    const std::string bound = line.ratio ? plain(line.must) : text(line.must);
    const std::string must = line.must ? (line.lower_is_better ? "<= " : ">= ") + bound : "-";
    const std::string peer = line.variant.empty() ? line.peer : line.peer + " " + line.variant;
    absl::StrAppendFormat(&out, "%-26s %-5s %-9s %11s %10s  %-28s %11s %10s %9s %9s  %s\n",
                          line.name, line.transport, line.line_class, text(line.value),
                          nanoseconds(line.p99), peer, text(line.peer_value),
                          nanoseconds(line.peer_p99), plain(line.ratio), must, flags);
  }
  for (const std::string& reason : reasons) absl::StrAppend(&out, "skipped: ", reason, "\n");
  return out;
}

std::string MissingNumbers(const std::vector<Line>& lines) {
  std::set<std::string> rows;
  for (const Line& line : lines) {
    if (!line.best) continue;
    for (const std::string& flag : line.flags) {
      if (absl::EndsWith(flag, kNoWindow)) rows.insert(line.name + "/" + line.transport);
    }
  }
  if (rows.empty()) return "";
  return absl::StrCat(rows.size(), rows.size() == 1 ? " row lacks" : " rows lack",
                      " numbers: other processes used the cores; leave the machine alone, or "
                      "--foreign_max=1 keeps all windows\n");
}

}  // namespace verbena::benchmarks
