#pragma once
// Which room may include which, and which headers belong to one room only.
#include "tests/tidy/source_tree.h"

namespace verbena::tidy {

// Rooms include only rooms to their left; one fabric does not see another; public headers see only
// public ones; <iostream> stays out of rpc/, the verbs headers stay in rpc/fabric/verbs/, CUDA's
// stay in rpc/gpu/. Inside rpc/ and codegen/ a quoted include is spelled from the root, and a
// source file includes its own header first.
Findings CheckIncludes(const SourceFile& file);

}  // namespace verbena::tidy
