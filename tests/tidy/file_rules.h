#pragma once
// Rules about whole files and the tree.
#include "tests/tidy/source_tree.h"

namespace verbena::tidy {

// At most 600 lines for a header, 700 for a source file.
Findings CheckFileLength(const SourceFile& file);

// Work that must be done before landing is marked as a TODO of "now" (in parentheses), and does not
// land.
Findings CheckTodo(const SourceFile& file);

// No compiled or generated file; binary files only where data belong: fuzzing corpora and the
// examples' data.
Findings CheckNotGenerated(const SourceFile& file);

// Each .h and .cc of rpc/ and codegen/ is named in a CMakeLists.txt above it or included by another
// file.
Findings CheckNoDeadFiles(const std::vector<SourceFile>& tree);

}  // namespace verbena::tidy
