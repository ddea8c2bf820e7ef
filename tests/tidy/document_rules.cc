#include "tests/tidy/document_rules.h"

#include <algorithm>
#include <cctype>

namespace verbena::tidy {
namespace {

constexpr std::string_view kLeases = "rpc/session/LEASES.md";

// The names of all test cases of a file; literals that stand side by side are one.
void AddTestNames(std::string_view text, std::vector<std::string>& names) {
  constexpr std::string_view kOpens = "TEST_CASE(";
  for (std::size_t at = text.find(kOpens); at != std::string_view::npos;
       at = text.find(kOpens, at)) {
    std::string name;
    bool quoted = false;
    for (at += kOpens.size(); at < text.size() && (quoted || text[at] != ','); ++at) {
      if (text[at] == '"') {
        quoted = !quoted;
      } else if (quoted) {
        name += text[at];
      }
    }
    names.push_back(std::move(name));
  }
}

std::vector<std::string> TestNames(const std::vector<SourceFile>& tree) {
  std::vector<std::string> names;
  for (const SourceFile& file : tree) {
    if (StartsWith(file.path, "tests/") && EndsWith(file.path, "_test.cc")) {
      AddTestNames(file.text, names);
    }
  }
  return names;
}

// Of "one; another".
std::vector<std::string_view> Parts(std::string_view list) {
  std::vector<std::string_view> parts;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find("; "), list.size());
    parts.push_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 2, list.size()));
  }
  return parts;
}

void CheckCase(std::string_view line, std::size_t number, const std::vector<std::string>& names,
               Findings& findings) {
  bool any = false;
  for (std::size_t open = line.find('['); open != std::string_view::npos;
       open = line.find('[', open + 1)) {
    any = true;
    for (std::string_view words : Parts(line.substr(open + 1, line.find(']', open) - open - 1))) {
      const bool known = std::any_of(names.begin(), names.end(), [words](const std::string& name) {
        return Contains(name, words);
      });
      if (!known) {
        findings.push_back(Finding(kLeases, number,
                                   "no test case has \"" + std::string(words) + "\" in its name"));
      }
    }
  }
  if (!any) findings.push_back(Finding(kLeases, number, "a case that names no test"));
}

}  // namespace

Findings CheckLeaseCases(const std::vector<SourceFile>& tree) {
  Findings findings;
  const std::vector<std::string> names = TestNames(tree);
  for (const SourceFile& file : tree) {
    if (file.path != kLeases) continue;
    bool in_cases = false;
    std::size_t number = 0;
    for (std::string_view line : Lines(file.text)) {
      ++number;
      if (StartsWith(line, "## ")) in_cases = line == "## Cases";
      const bool is_case =
          in_cases && !line.empty() && std::isdigit(static_cast<unsigned char>(line[0]));
      if (is_case) CheckCase(line, number, names, findings);
    }
  }
  return findings;
}

}  // namespace verbena::tidy
