// What comes out is what the golden files say. VERBENA_UPDATE_GOLDEN=1 rewrites them instead.
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/codegen/protoc.h"

namespace verbena::codegen {
namespace {
namespace fs = std::filesystem;

constexpr char kRoot[] = VERBENA_SOURCE_DIR "/tests/codegen";

// Paths below `root`, of files whose name ends with one of `ends`.
std::set<std::string> FilesBelow(const std::string& root, const std::string& folder,
                                 const std::vector<std::string>& ends) {
  std::set<std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root + "/" + folder)) {
    const std::string name = entry.path().string();
    for (const std::string& end : ends) {
      if (name.size() > end.size() &&
          name.compare(name.size() - end.size(), end.size(), end) == 0) {
        files.insert(fs::relative(entry.path(), root).string());
      }
    }
  }
  return files;
}

std::vector<std::string> GoldenProtos() {
  const std::set<std::string> files = FilesBelow(kRoot, "golden", {".proto"});
  return std::vector<std::string>(files.begin(), files.end());
}

const std::vector<std::string>& Outputs() {
  static const auto& ends =
      *new std::vector<std::string>{".verbena.h", ".verbena.cc", ".verbena_mock.h"};
  return ends;
}

TEST_CASE("generated code is what the golden files say", "[codegen][golden]") {
  const std::vector<std::string> protos = GoldenProtos();
  REQUIRE(protos.size() >= 10);
  const Workspace workspace;
  const ProcessResult protoc = workspace.Protoc(protos, {kRoot});
  INFO(protoc.output);
  REQUIRE(protoc.status == 0);

  const std::set<std::string> generated = FilesBelow(workspace.out(), "golden", Outputs());
  if (std::getenv("VERBENA_UPDATE_GOLDEN") != nullptr) {
    for (const std::string& old : FilesBelow(kRoot, "golden", Outputs())) {
      fs::remove(std::string(kRoot) + "/" + old);
    }
    for (const std::string& name : generated) {
      WriteFile(std::string(kRoot) + "/" + name, ReadFile(workspace.out() + "/" + name));
    }
  }
  CHECK(generated == FilesBelow(kRoot, "golden", Outputs()));
  CHECK(generated.size() == protos.size() * Outputs().size());
  for (const std::string& name : generated) {
    INFO(name << ": run with VERBENA_UPDATE_GOLDEN=1 if the change is wanted");
    CHECK(ReadFile(workspace.out() + "/" + name) == ReadFile(std::string(kRoot) + "/" + name));
  }
}

TEST_CASE("what is generated for a file does not depend on the others of its run",
          "[codegen][golden]") {
  for (const std::string& proto : GoldenProtos()) {
    const Workspace alone;
    const ProcessResult protoc = alone.Protoc({proto}, {kRoot});
    INFO(proto << ": " << protoc.output);
    REQUIRE(protoc.status == 0);
    const std::set<std::string> generated = FilesBelow(alone.out(), "golden", Outputs());
    CHECK(generated.size() == Outputs().size());
    for (const std::string& name : generated) {
      CHECK(ReadFile(alone.out() + "/" + name) == ReadFile(std::string(kRoot) + "/" + name));
    }
  }
}

}  // namespace
}  // namespace verbena::codegen
