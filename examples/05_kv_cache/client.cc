// Has prompts prefilled and handed over to a decode server, which looks at every byte.
//   client ADDRESS BLOCKS PROMPTS
#include <cstdio>

#include "absl/strings/numbers.h"
#include "examples/common/command_line.h"
#include "kv.verbena.h"
#include "verbena/verbena.h"

namespace {

absl::Status Ask(const kv::Decode::Stub& stub, uint32_t seed, uint32_t blocks) {
  kv::Prompt prompt;
  prompt.set_seed(seed);
  prompt.set_blocks(blocks);
  VERBENA_ASSIGN_OR_RETURN(kv::Generated done, stub.Generate(prompt).Get());
  kv::CheckRequest check;
  check.set_sequence(done.sequence());
  VERBENA_RETURN_IF_ERROR(stub.Check(check).Get().status());
  std::printf(
      "prompt %u: %.1f MiB of keys and values in %.2f ms by %s, all bytes right; %u layers were in "
      "place before the last was computed\n",
      seed, static_cast<double>(done.bytes()) / (1 << 20), done.seconds() * 1e3,
      done.path().c_str(), done.early());
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  const auto line =
      verbena::examples::ReadCommandLine(argc, argv, 3, "client ADDRESS BLOCKS PROMPTS");
  uint32_t blocks = 0, prompts = 0;
  if (!line || !absl::SimpleAtoi(line->arguments[1], &blocks) ||
      !absl::SimpleAtoi(line->arguments[2], &prompts)) {
    return 2;
  }
  auto options = line->channel;
  options.set_default_timeout(absl::Seconds(60));
  const kv::Decode::Stub stub(verbena::Channel::Create(line->arguments[0], options));
  for (uint32_t seed = 1; seed <= prompts; ++seed) {
    const absl::Status status = Ask(stub, seed, blocks);
    if (status.ok()) continue;
    std::fprintf(stderr, "client: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
