#pragma once
#define VERBENA_GENERATED_VERSION 1
