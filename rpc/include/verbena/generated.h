#pragma once
// All that generated code includes, and of Verbena the first.
#if __cplusplus < 202002L
#error "Verbena needs -std=c++20"
#endif

#include "verbena/call.h"
#include "verbena/channel.h"
#include "verbena/context.h"
#include "verbena/parcel.h"
#include "verbena/service.h"
#include "verbena/stream.h"
#include "verbena/task.h"

// + 1 whenever generated code and runtime stop fitting together.
#define VERBENA_GENERATED_VERSION 1
