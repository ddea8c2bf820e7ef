#include "rpc/base/log.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace verbena {
namespace {

constexpr absl::string_view kLevelNames[] = {"error", "warning", "info", "debug"};

LogLevel LevelFromEnvironment() {
  const char* name = std::getenv("VERBENA_LOG_LEVEL");
  if (name == nullptr) return LogLevel::kWarning;
  for (int i = 0; i < 4; ++i) {
    if (kLevelNames[i] == absl::string_view(name)) return static_cast<LogLevel>(i);
  }
  return LogLevel::kWarning;
}

std::atomic<int>& Level() {
  static std::atomic<int> level{static_cast<int>(LevelFromEnvironment())};
  return level;
}

// The sink is shared with whoever is logging, so that it is not destroyed under them. Never
// destroyed: threads may log until the process ends.
struct Sink {
  std::mutex mutex;
  std::shared_ptr<const LogSink> sink;
};
Sink& TheSink() {
  static Sink* sink = new Sink;
  return *sink;
}

void WriteToStderr(LogLevel level, absl::string_view line) {
  const std::string text =
      absl::StrCat(absl::FormatTime("%Y-%m-%d %H:%M:%E6S", absl::Now(), absl::UTCTimeZone()),
                   " verbena ", kLevelNames[static_cast<int>(level)], ": ", line, "\n");
  size_t done = 0;
  while (done < text.size()) {  // one write() per line, so that lines of several threads do not mix
    const ssize_t n = ::write(STDERR_FILENO, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    done += static_cast<size_t>(n);
  }
}

}  // namespace

void SetLogSink(LogSink sink) {
  std::shared_ptr<const LogSink> next;
  if (sink) next = std::make_shared<const LogSink>(std::move(sink));
  std::lock_guard lock(TheSink().mutex);
  TheSink().sink.swap(next);
}

void SetLogLevel(LogLevel level) {
  Level().store(static_cast<int>(level), std::memory_order_relaxed);
}

bool LogEnabled(LogLevel level) {
  return static_cast<int>(level) <= Level().load(std::memory_order_relaxed);
}

void LogLine(LogLevel level, absl::string_view line) {
  std::shared_ptr<const LogSink> sink;
  {
    std::lock_guard lock(TheSink().mutex);
    sink = TheSink().sink;
  }
  if (sink != nullptr) {
    (*sink)(level, line);
  } else {
    WriteToStderr(level, line);
  }
}

}  // namespace verbena
