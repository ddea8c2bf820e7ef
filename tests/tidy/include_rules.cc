#include "tests/tidy/include_rules.h"

#include <map>

namespace verbena::tidy {
namespace {

// A room includes itself and rooms of a smaller number. gpu implements what memory declares.
const std::map<std::string, int, std::less<>> kRanks = {
    {"base", 0},   {"wire", 1},    {"topology", 1}, {"memory", 2}, {"gpu", 3},
    {"fabric", 3}, {"reactor", 4}, {"session", 5},  {"tensor", 6}, {"client", 7},
    {"server", 7}, {"observe", 8}, {"services", 8}, {"tool", 9}};

struct Include {
  std::string path;
  bool quoted;
  std::size_t line;
};

std::vector<Include> Includes(std::string_view text) {
  std::vector<Include> includes;
  std::size_t number = 0;
  for (std::string_view line : Lines(text)) {
    ++number;
    std::size_t hash = line.find_first_not_of(" \t");
    if (hash == std::string_view::npos || line[hash] != '#') continue;
    line.remove_prefix(hash + 1);
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    if (!StartsWith(line, "include")) continue;
    std::size_t open = line.find_first_of("\"<");
    if (open == std::string_view::npos) continue;
    std::size_t close = line.find(line[open] == '<' ? '>' : '"', open + 1);
    if (close == std::string_view::npos) continue;
    includes.push_back(
        {std::string(line.substr(open + 1, close - open - 1)), line[open] == '"', number});
  }
  return includes;
}

// "memory" of "rpc/memory/slab.h"; empty when the path is not in a room, or in rpc/include.
std::string_view RoomOf(std::string_view path) {
  if (!StartsWith(path, "rpc/") || StartsWith(path, "rpc/include/")) return {};
  path.remove_prefix(4);
  std::size_t slash = path.find('/');
  return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
}

// "shm" of "rpc/fabric/shm/ring.h"; empty for the contract itself.
std::string_view FabricOf(std::string_view path) {
  constexpr std::string_view kFabrics = "rpc/fabric/";
  if (!StartsWith(path, kFabrics)) return {};
  path.remove_prefix(kFabrics.size());
  std::size_t slash = path.find('/');
  return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
}

std::string CheckDirection(std::string_view from, std::string_view to) {
  std::string_view from_room = RoomOf(from);
  std::string_view to_room = RoomOf(to);
  if (StartsWith(from, "rpc/include/")) {
    return StartsWith(to, "rpc/") ? "a public header includes only public ones" : "";
  }
  if (from_room.empty() || to_room.empty()) return "";
  if (from_room == to_room) {
    std::string_view from_fabric = FabricOf(from);
    std::string_view to_fabric = FabricOf(to);
    bool strangers = !from_fabric.empty() && !to_fabric.empty() && from_fabric != to_fabric;
    return strangers ? "one fabric does not see another" : "";
  }
  auto from_rank = kRanks.find(from_room);
  auto to_rank = kRanks.find(to_room);
  if (from_rank == kRanks.end() || to_rank == kRanks.end()) return "a room without a rank";
  if (to_rank->second < from_rank->second && (to_room != "gpu" || from_room == "tool")) return "";
  return std::string(from_room) + " does not include " + std::string(to_room);
}

std::string CheckBanned(std::string_view from, std::string_view to) {
  bool measures = StartsWith(from, "tests/") || StartsWith(from, "benchmarks/");
  if (to == "iostream" && StartsWith(from, "rpc/")) return "<iostream> has static initialisers";
  bool verbs = StartsWith(to, "infiniband/") || StartsWith(to, "rdma/");
  if (verbs && !measures && !StartsWith(from, "rpc/fabric/verbs/")) {
    return "verbs headers belong to rpc/fabric/verbs/";
  }
  bool cuda = StartsWith(to, "cuda") || StartsWith(to, "nvml");
  if (cuda && !measures && !StartsWith(from, "rpc/gpu/")) return "CUDA belongs to rpc/gpu/";
  return "";
}

std::string CheckSpelling(std::string_view from, const Include& include) {
  if (!include.quoted || !(StartsWith(from, "rpc/") || StartsWith(from, "codegen/"))) return "";
  if (Contains(include.path, "../") || !Contains(include.path, "/")) {
    return "spell includes from the root of the tree";
  }
  return "";
}

}  // namespace

Findings CheckIncludes(const SourceFile& file) {
  Findings findings;
  if (!IsCpp(file.path) || IsMachineMade(file.path)) return findings;
  std::vector<Include> includes = Includes(file.text);
  for (const Include& include : includes) {
    for (const std::string& wrong :
         {CheckDirection(file.path, include.path), CheckBanned(file.path, include.path),
          CheckSpelling(file.path, include)}) {
      if (!wrong.empty())
        findings.push_back(Finding(file.path, include.line, include.path + ": " + wrong));
    }
  }
  if (StartsWith(file.path, "rpc/") && EndsWith(file.path, ".cc")) {
    std::string own = file.path.substr(0, file.path.size() - 3) + ".h";
    for (std::size_t i = 1; i < includes.size(); ++i) {
      if (includes[i].path == own) {
        findings.push_back(
            Finding(file.path, includes[i].line, own + ": a file's own header comes first"));
      }
    }
  }
  return findings;
}

}  // namespace verbena::tidy
