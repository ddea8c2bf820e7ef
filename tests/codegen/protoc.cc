#include "tests/codegen/protoc.h"

#include <stdlib.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace verbena::codegen {
namespace fs = std::filesystem;

ProcessResult RunCommand(const std::string& command) {
  FILE* pipe = popen(("{ " + command + "\n} 2>&1").c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run " + command);
  ProcessResult result;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) result.output.append(buffer, n);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) result.status = WEXITSTATUS(status);
  return result;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

void WriteFile(const std::string& path, const std::string& content) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream out(path, std::ios::binary);
  out << content;
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

Workspace::Workspace() : root_((fs::temp_directory_path() / "verbena_codegen_XXXXXX").string()) {
  if (mkdtemp(root_.data()) == nullptr) throw std::runtime_error("cannot make " + root_);
  fs::create_directories(out());
}

Workspace::~Workspace() {
  std::error_code ignored;
  fs::remove_all(root_, ignored);
}

void Workspace::Add(const std::string& name, const std::string& text) {
  WriteFile(root_ + "/" + name, text);
}

ProcessResult Workspace::Protoc(const std::vector<std::string>& files,
                                const std::vector<std::string>& import_dirs,
                                const std::string& parameter) const {
  std::string command = VERBENA_PROTOC;
  for (const std::string& dir : import_dirs) command += " '-I" + dir + "'";
  command += " '-I" + root_ + "' '-I" VERBENA_SOURCE_DIR "/proto'";
  command += " '--plugin=protoc-gen-verbena=" VERBENA_PLUGIN "' '--verbena_out=" + out() + "'";
  if (!parameter.empty()) command += " '--verbena_opt=" + parameter + "'";
  for (const std::string& file : files) command += " '" + file + "'";
  return RunCommand(command);
}

}  // namespace verbena::codegen
