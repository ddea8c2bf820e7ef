#pragma once
// Macros for functions and coroutines that return absl::Status or absl::StatusOr.
//   VERBENA_ASSIGN_OR_RETURN(auto file, Open(path));                       // in a function
//   VERBENA_CO_ASSIGN_OR_RETURN(HelloReply r, co_await stub.SayHello(q));  // in a coroutine
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define VERBENA_INTERNAL_CONCAT2(a, b) a##b
#define VERBENA_INTERNAL_CONCAT(a, b) VERBENA_INTERNAL_CONCAT2(a, b)

// Plain statements, never statement expressions: co_await is allowed inside, and g++ 12 compiles it
// correctly.
#define VERBENA_INTERNAL_RETURN_IF_ERROR(leave, ...)                  \
  do {                                                                \
    ::absl::Status verbena_internal_status = (__VA_ARGS__);           \
    if (!verbena_internal_status.ok()) leave verbena_internal_status; \
  } while (false)
#define VERBENA_INTERNAL_ASSIGN(leave, result, target, ...) \
  auto result = (__VA_ARGS__);                              \
  if (!result.ok()) leave std::move(result).status();       \
  target = *std::move(result)

#define VERBENA_RETURN_IF_ERROR(...) VERBENA_INTERNAL_RETURN_IF_ERROR(return, __VA_ARGS__)
#define VERBENA_CO_RETURN_IF_ERROR(...) VERBENA_INTERNAL_RETURN_IF_ERROR(co_return, __VA_ARGS__)
#define VERBENA_ASSIGN_OR_RETURN(target, ...)                                                    \
  VERBENA_INTERNAL_ASSIGN(return, VERBENA_INTERNAL_CONCAT(verbena_result_, __COUNTER__), target, \
                                __VA_ARGS__)
#define VERBENA_CO_ASSIGN_OR_RETURN(target, ...)                                            \
  VERBENA_INTERNAL_ASSIGN(co_return, VERBENA_INTERNAL_CONCAT(verbena_result_, __COUNTER__), \
                          target, __VA_ARGS__)
