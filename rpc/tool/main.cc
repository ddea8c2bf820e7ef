// The program `verbena`.
#include <cstdio>
#include <cstring>
#include <exception>

#include "absl/types/span.h"
#include "rpc/tool/doctor.h"

namespace {

constexpr char kUsage[] =
    "usage: verbena COMMAND\n"
    "  doctor [--json]   what this machine has for RDMA, which device Verbena would use and why,\n"
    "                    what is wrong and what mends it. Exit code 0: nothing is wrong with what\n"
    "                    is there; 1: problems.\n"
    "  --version\n";

int Run(absl::Span<const char* const> arguments) {
  const absl::string_view command = arguments.empty() ? "" : arguments[0];
  if (command == "doctor") return verbena::tool::RunDoctor(arguments.subspan(1));
  if (command == "--version") {
    std::puts("verbena " VERBENA_VERSION);
    return 0;
  }
  const bool asked = command == "--help" || command == "-h" || command == "help";
  std::fputs(kUsage, asked ? stdout : stderr);
  return asked ? 0 : 2;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Run(absl::MakeConstSpan(argv, static_cast<size_t>(argc)).subspan(argc > 0 ? 1 : 0));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "verbena: %s\n", error.what());
    return 1;
  }
}
