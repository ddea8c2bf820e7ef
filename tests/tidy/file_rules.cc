#include "tests/tidy/file_rules.h"

namespace verbena::tidy {
namespace {

constexpr std::size_t kHeaderLinesMax = 600;
constexpr std::size_t kSourceLinesMax = 700;
constexpr std::size_t kTextBytesMax = 1 << 20;  // Larger is data, not something that is read.

bool IsData(std::string_view path) {
  return StartsWith(path, "tests/fuzz/corpus/") || Contains(path, "/testdata/") ||
         (StartsWith(path, "examples/") &&
          (Contains(path, "/data/") || EndsWith(path, ".safetensors")));
}

bool Mentions(std::string_view text, std::string_view path) {
  for (std::size_t at = text.find(path); at != std::string_view::npos;
       at = text.find(path, at + 1)) {
    std::string_view before = text.substr(0, at);
    bool starts = at == 0 || EndsWith(before, "}/") || Contains(" \t\n\"(", before.substr(at - 1));
    std::size_t end = at + path.size();
    if (starts && (end == text.size() || Contains(" \t\n\")", text.substr(end, 1)))) return true;
  }
  return false;
}

// A CMakeLists.txt above the file that names it relative to itself.
bool IsBuilt(const SourceFile& file, const std::vector<SourceFile>& tree) {
  for (const SourceFile& other : tree) {
    if (!EndsWith(other.path, "CMakeLists.txt")) continue;
    std::string folder =
        other.path.substr(0, other.path.size() - std::string_view("CMakeLists.txt").size());
    if (!StartsWith(file.path, folder)) continue;
    if (Mentions(other.text, std::string_view(file.path).substr(folder.size()))) return true;
  }
  return false;
}

bool IsIncluded(const SourceFile& file, const std::vector<SourceFile>& tree) {
  std::string quoted = "\"" + file.path + "\"";
  for (const SourceFile& other : tree) {
    if (&other != &file && IsCpp(other.path) && Contains(other.text, quoted)) return true;
  }
  return false;
}

// A header of a room that has no CMakeLists.txt yet: a contract may land before what keeps it.
bool IsAhead(const SourceFile& file, const std::vector<SourceFile>& tree) {
  std::string room = file.path.substr(0, file.path.find('/', std::string_view("rpc/").size()));
  for (const SourceFile& other : tree) {
    if (other.path == room + "/CMakeLists.txt") return false;
  }
  return StartsWith(file.path, "rpc/") && EndsWith(file.path, ".h");
}

}  // namespace

Findings CheckFileLength(const SourceFile& file) {
  if (!IsCpp(file.path) || IsMachineMade(file.path)) return {};
  std::size_t lines = Lines(file.text).size();
  std::size_t most = EndsWith(file.path, ".h") ? kHeaderLinesMax : kSourceLinesMax;
  if (lines <= most) return {};
  return {Finding(file.path, lines,
                  std::to_string(lines) + " lines; the limit is " + std::to_string(most))};
}

Findings CheckTodo(const SourceFile& file) {
  const std::string marker = std::string("TODO(") + "now)";  // This file does not contain it.
  Findings findings;
  std::size_t number = 0;
  for (std::string_view line : Lines(file.text)) {
    ++number;
    if (Contains(line, marker)) findings.push_back(Finding(file.path, number, "do it now"));
  }
  return findings;
}

Findings CheckNotGenerated(const SourceFile& file) {
  for (const char* end : {".o", ".a", ".so", ".pyc", ".gcda", ".gcno", ".orig", ".rej"}) {
    if (EndsWith(file.path, end)) return {Finding(file.path, 1, "a build product")};
  }
  for (const char* end : {".pb.h", ".pb.cc", ".verbena.h", ".verbena.cc", "_pb2.py"}) {
    if (EndsWith(file.path, end) && !IsMachineMade(file.path)) {
      return {Finding(file.path, 1, "generated: the build makes it")};
    }
  }
  if (IsData(file.path)) return {};
  if (Contains(file.text, std::string_view("\0", 1)))
    return {Finding(file.path, 1, "a binary file")};
  if (file.text.size() > kTextBytesMax) return {Finding(file.path, 1, "more than 1 MiB")};
  return {};
}

Findings CheckNoDeadFiles(const std::vector<SourceFile>& tree) {
  Findings findings;
  for (const SourceFile& file : tree) {
    bool bound = StartsWith(file.path, "rpc/") || StartsWith(file.path, "codegen/");
    if (!bound || !IsCpp(file.path) || IsMachineMade(file.path)) continue;
    if (StartsWith(file.path, "rpc/include/")) continue;  // What users include.
    if (!IsBuilt(file, tree) && !IsIncluded(file, tree) && !IsAhead(file, tree)) {
      findings.push_back(
          Finding(file.path, 1, "no CMakeLists.txt names it and no file includes it"));
    }
  }
  return findings;
}

}  // namespace verbena::tidy
