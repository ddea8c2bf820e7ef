#pragma once
// The files of the source tree, as git sees them, and what the rules share about reading them.
#include <string>
#include <string_view>
#include <vector>

namespace verbena::tidy {

struct SourceFile {
  std::string path;  // relative to the root: "rpc/base/ids.h"
  std::string text;
};

// What a rule found wrong, ready to print: "path:line: what".
using Findings = std::vector<std::string>;

// Every file that git tracks, or would if it were added now. Throws std::runtime_error outside a
// git checkout.
std::vector<SourceFile> LoadTree(const std::string& root);

bool StartsWith(std::string_view text, std::string_view start);
bool EndsWith(std::string_view text, std::string_view end);
bool Contains(std::string_view text, std::string_view part);
bool IsCpp(std::string_view path);          // .h or .cc
bool IsMachineMade(std::string_view path);  // a golden file: what a generator must write

std::vector<std::string_view> Lines(std::string_view text);
std::string Finding(std::string_view path, std::size_t line, std::string_view what);

// The same text with comments, string and character literals, and preprocessor lines made blank;
// line breaks stay. Of the branches of an #if only the first stays.
std::string CodeOnly(std::string_view text);

}  // namespace verbena::tidy
