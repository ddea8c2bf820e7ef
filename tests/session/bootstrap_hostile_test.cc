// Peers that break the rules, on either side.
#include "tests/catch.h"

#include "tests/session/bootstrap_fakes.h"
