#pragma once
// Everything a user needs beside the generated headers. Not here, for few need them: dlpack.h,
// testing.h.
#include "verbena/generated.h"
#include "verbena/runtime.h"
#include "verbena/server.h"
#include "verbena/status.h"
#include "verbena/when_all.h"
