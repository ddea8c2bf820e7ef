#pragma once
// Everything a user needs beside the generated headers. Not here, for not all need them: gpu.h,
// dlpack.h, testing.h.
#include "verbena/generated.h"
#include "verbena/runtime.h"
#include "verbena/server.h"
#include "verbena/status.h"
#include "verbena/when_all.h"
