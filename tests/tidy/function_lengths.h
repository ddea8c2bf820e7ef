#pragma once
// How long the functions of a file are. No parser: braces are matched and what stands before each
// is looked at, which is exact for code formatted as this tree is.
#include <string>
#include <string_view>
#include <vector>

#include "tests/tidy/source_tree.h"

namespace verbena::tidy {

struct FunctionSpan {
  std::string name;   // the word before the parameter list
  std::size_t line;   // where its declaration begins, 1-based
  std::size_t lines;  // from there to its closing brace
};

std::vector<FunctionSpan> Functions(std::string_view text);

// STYLE rule 7: at most 70 lines, in rpc/ and codegen/.
Findings CheckFunctionLengths(const SourceFile& file);

}  // namespace verbena::tidy
