#include "tests/system/verbs_holdings.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/catch.h"

namespace verbena::system_test {
namespace {

Numbers KernelResources() {
  Numbers held;
  for (absl::string_view line : absl::StrSplit(OutputOf("rdma resource show 2>&1"), '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    for (size_t i = 2; i + 1 < words.size(); i += 2) {
      uint64_t count = 0;
      if (absl::SimpleAtoi(words[i + 1], &count)) held[std::string(words[i])] += count;
    }
  }
  return held;
}

// What is in `now` more than in `before`; empty: nothing.
std::string More(const Numbers& now, const Numbers& before) {
  std::string more;
  for (const auto& [name, count] : now) {
    const auto found = before.find(name);
    const uint64_t then = found == before.end() ? 0 : found->second;
    if (count > then) absl::StrAppend(&more, " ", name, " ", then, " -> ", count);
  }
  return more;
}

}  // namespace

uint64_t Number(const std::map<std::string, std::string>& fields, const std::string& name) {
  uint64_t value = 0;
  INFO(name);
  REQUIRE(fields.count(name) == 1);
  REQUIRE(absl::SimpleAtoi(fields.at(name), &value));
  return value;
}

std::string OutputOf(const std::string& command) {
  std::string text;
  FILE* const pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::array<char, 4096> bytes;
  for (size_t got; (got = fread(bytes.data(), 1, bytes.size(), pipe)) > 0;) {
    text.append(bytes.data(), got);
  }
  pclose(pipe);
  return text;
}

Numbers VerbsOf(ServerPeer& server) {
  Numbers numbers;
  const auto fields = Fields(server.Ask("verbs"));
  for (const auto& field : fields) numbers[field.first] = Number(fields, field.first);
  return numbers;
}

Holdings Holdings::Of(ServerPeer& server) {
  return {server.state(), VerbsOf(server), KernelResources()};
}

std::string Holdings::MoreIn(const Holdings& now) const {
  Numbers fabric_now = now.fabric;
  fabric_now["windows"] -= std::min<uint64_t>(fabric_now["windows"], 63);
  std::string more = absl::StrCat(More(fabric_now, fabric), More(now.kernel, kernel));
  const auto add = [&more](const char* name, uint64_t is, uint64_t was) {
    if (is > was) absl::StrAppend(&more, " ", name, " ", was, " -> ", is);
  };
  add("links", now.state.links, state.links);
  add("leases", now.state.leases, state.leases);
  add("used_bytes", now.state.used_bytes, state.used_bytes);
  return more;
}

}  // namespace verbena::system_test
