#pragma once
// Logging: one line per event, lower case, exact cause, by whoever decides that it is an event. Not
// on the message path.
//   VERBENA_LOG(kWarning, "peer ", address, " closed: ", reason);
// The level comes from VERBENA_LOG_LEVEL (error, warning, info, debug; default warning); the sink
// is stderr unless SetLogSink replaced it.
#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace verbena {

enum class LogLevel : int { kError = 0, kWarning = 1, kInfo = 2, kDebug = 3 };

using LogSink = absl::AnyInvocable<void(LogLevel level, absl::string_view line) const>;

// Any thread. The sink runs on whatever thread logs, possibly several at once. An empty sink
// restores stderr.
void SetLogSink(LogSink sink);
void SetLogLevel(LogLevel level);
bool LogEnabled(LogLevel level);
void LogLine(LogLevel level, absl::string_view line);

}  // namespace verbena

#define VERBENA_LOG(level, ...)                                                    \
  do {                                                                             \
    if (::verbena::LogEnabled(::verbena::LogLevel::level)) {                       \
      ::verbena::LogLine(::verbena::LogLevel::level, ::absl::StrCat(__VA_ARGS__)); \
    }                                                                              \
  } while (false)
