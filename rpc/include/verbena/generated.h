#pragma once
// All that generated code includes.
#include "verbena/call.h"
#include "verbena/channel.h"
#include "verbena/context.h"
#include "verbena/parcel.h"
#include "verbena/service.h"
#include "verbena/stream.h"
#include "verbena/task.h"

// + 1 whenever generated code and runtime stop fitting together.
#define VERBENA_GENERATED_VERSION 1
