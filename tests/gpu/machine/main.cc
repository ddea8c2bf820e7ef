// What runs on a machine with GPUs: gpu_machine [CATCH2 ARGUMENTS] the tests, gpu_machine table
// [PART] the table, or the rows whose names hold PART. Without a GPU both say so and exit with 77.
#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif
#include <cstdio>
#include <cstring>

#include "tests/gpu/machine/owner.h"
#include "tests/gpu/machine/table.h"
#include "verbena/gpu.h"

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "owner") == 0) {
    return verbena::gpu_test::OwnerMain(argv[2]);
  }
  if (argc >= 2 && std::strcmp(argv[1], "table") == 0) {
    return verbena::gpu_test::TableMain(argc > 2 ? argv[2] : "");
  }
  if (const absl::Status s = verbena::UseGpus(); !s.ok()) {
    std::printf("not run: %s\n", s.ToString().c_str());
    return 77;
  }
  return Catch::Session().run(argc, argv);
}
