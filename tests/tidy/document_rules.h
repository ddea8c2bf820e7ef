#pragma once
// What documents say about the tree.
#include "tests/tidy/source_tree.h"

namespace verbena::tidy {

// Each case that rpc/session/LEASES.md lists names its tests in brackets, [words of one; of
// another]: every one is part of the name of a test case in tests/.
Findings CheckLeaseCases(const std::vector<SourceFile>& tree);

}  // namespace verbena::tidy
