#pragma once
// The command line of a program that calls a server:  NAME [--transport shm|verbs|tcp] ARGUMENT...
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "verbena/channel.h"

namespace verbena::examples {

struct CommandLine {
  std::vector<std::string> arguments;
  // A server that is not there or does not answer is an error and no wait. With --transport, the
  // channel takes this one or fails.
  ChannelOptions channel =
      ChannelOptions().set_connect_timeout(absl::Seconds(5)).set_default_timeout(absl::Seconds(10));
};

// Empty, and what is wrong on stderr, unless there are as many arguments as `count`, or up to
// `more` more, and no option but --transport with a transport's name.
inline std::optional<CommandLine> ReadCommandLine(int argc, char** argv, size_t count,
                                                  const char* usage, size_t more = 0) {
  CommandLine line;
  for (int i = 1; i < argc; ++i) {
    const absl::string_view word = argv[i];
    if (word == "--transport" && i + 1 < argc) {
      const absl::string_view name = argv[++i];
      if (name != "shm" && name != "verbs" && name != "tcp") {
        std::fprintf(stderr, "--transport %s: it is shm, verbs or tcp\n", argv[i]);
        return std::nullopt;
      }
      line.channel.set_require_transport(name);
    } else if (!word.empty() && word[0] != '-') {
      line.arguments.emplace_back(word);
    } else {
      line.arguments.clear();
      break;
    }
  }
  if (line.arguments.size() >= count && line.arguments.size() <= count + more) return line;
  std::fprintf(stderr, "usage: %s\n", usage);
  return std::nullopt;
}

}  // namespace verbena::examples
