#include "rpc/tool/doctor.h"

#include <cstdio>

#include "absl/strings/string_view.h"

namespace verbena::tool {

int RunDoctor(absl::Span<const char* const> arguments) {
  bool json = false;
  for (absl::string_view argument : arguments) {
    if (argument == "--help" || argument == "-h") {
      std::puts("usage: verbena doctor [--json]");
      return 0;
    }
    if (argument != "--json") {
      std::fprintf(stderr, "verbena doctor: unknown argument %s; usage: verbena doctor [--json]\n",
                   std::string(argument).c_str());
      return 2;
    }
    json = true;
  }
  const MachineFacts facts = GatherFacts();
  const std::vector<Finding> findings = Examine(facts);
  const std::string text = json ? DoctorJson(facts, findings) : DoctorText(facts, findings);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  return AnyProblem(findings) ? 1 : 0;
}

}  // namespace verbena::tool
