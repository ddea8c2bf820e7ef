#pragma once
// Runs the real protoc with the real plugin, in a directory that is removed at the end.
#include <string>
#include <vector>

namespace verbena::codegen {

struct ProcessResult {
  int status = -1;
  std::string output;  // stdout and stderr together
};

// Runs a shell command.
ProcessResult RunCommand(const std::string& command);

std::string ReadFile(const std::string& path);  // empty when it is not there
void WriteFile(const std::string& path, const std::string& content);

class Workspace {
 public:
  Workspace();
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  const std::string& root() const { return root_; }

  // Writes a .proto, to be named in Protoc().
  void Add(const std::string& name, const std::string& text);

  // protoc with Verbena's own .proto files, those of the workspace, and `import_dirs`; what is
  // generated lands in out().
  ProcessResult Protoc(const std::vector<std::string>& files,
                       const std::vector<std::string>& import_dirs = {},
                       const std::string& parameter = "") const;
  std::string out() const { return root_ + "/out"; }

 private:
  std::string root_;
};

}  // namespace verbena::codegen
