#include "tests/tidy/source_tree.h"

#include <sys/wait.h>

#include <cctype>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace verbena::tidy {
namespace {

std::string Output(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run " + command);
  std::string output;
  char buffer[4096];
  for (std::size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
  if (int status = pclose(pipe); !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw std::runtime_error("failed: " + command);
  }
  return output;
}

// Blanks what is no code, one construct at a time.
class Blanker {
 public:
  explicit Blanker(std::string_view text) : text_(text) {}

  std::string Run() {
    for (bool line_start = true; at_ < text_.size();) {
      char c = text_[at_];
      if (line_start && c == '#') {
        Directive();
      } else if (At("//")) {
        BlankTo(EndOfLine());
      } else if (At("/*")) {
        BlankPast("*/", 2);
      } else if (At("R\"") && !IsIdentifierPart(Previous())) {
        RawString();
      } else if (c == '"' || (c == '\'' && !IsIdentifierPart(Previous()))) {
        Literal(c);
      } else {
        if (c == '\n') {
          line_start = true;
        } else if (!std::isspace(static_cast<unsigned char>(c))) {
          line_start = false;
        }
        Take();
      }
    }
    return std::move(code_);
  }

 private:
  static bool IsIdentifierPart(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  }
  bool At(std::string_view what) const { return text_.substr(at_, what.size()) == what; }
  char Previous() const { return at_ == 0 ? '\n' : text_[at_ - 1]; }
  std::size_t EndOfLine() const { return std::min(text_.find('\n', at_), text_.size()); }

  void Take() { code_ += SkippedBranch() && text_[at_] != '\n' ? ' ' : text_[at_], ++at_; }
  void BlankTo(std::size_t end) {
    for (; at_ < end; ++at_) code_ += text_[at_] == '\n' ? '\n' : ' ';
  }
  void BlankPast(std::string_view end, std::size_t from) {
    std::size_t found = text_.find(end, at_ + from);
    BlankTo(found == std::string_view::npos ? text_.size() : found + end.size());
  }

  void RawString() {
    std::size_t open = text_.find('(', at_);
    if (open == std::string_view::npos) return BlankTo(text_.size());
    std::string close = ")" + std::string(text_.substr(at_ + 2, open - at_ - 2)) + "\"";
    BlankPast(close, open - at_);
  }

  // A literal stays visible as 0, so that what is around it still reads as an expression.
  void Literal(char quote) {
    std::size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote && text_[end] != '\n') {
      end += text_[end] == '\\' ? 2 : 1;
    }
    std::size_t first = code_.size();
    BlankTo(std::min(end + 1, text_.size()));
    if (!SkippedBranch()) code_[first] = '0';
  }

  void Directive() {
    std::size_t end = EndOfLine();
    while (end < text_.size() && text_[end - 1] == '\\') {
      end = std::min(text_.find('\n', end + 1), text_.size());
    }
    std::string_view word = text_.substr(at_ + 1, end - at_ - 1);
    while (!word.empty() && std::isspace(static_cast<unsigned char>(word[0]))) {
      word.remove_prefix(1);
    }
    if (StartsWith(word, "if")) {
      branches_.push_back(false);
    } else if (StartsWith(word, "endif")) {
      if (!branches_.empty()) branches_.pop_back();
    } else if (StartsWith(word, "el") && !branches_.empty()) {
      branches_.back() = true;
    }
    BlankTo(end);
  }

  bool SkippedBranch() const {
    for (bool skipped : branches_) {
      if (skipped) return true;
    }
    return false;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string code_;
  std::vector<bool> branches_;  // per open #if: whether its first branch is over
};

}  // namespace

std::vector<SourceFile> LoadTree(const std::string& root) {
  std::string names = Output("git -c safe.directory='*' -C '" + root +
                             "' ls-files -z --cached --others --exclude-standard");
  std::vector<SourceFile> files;
  for (std::size_t at = 0; at < names.size();) {
    std::string path = names.c_str() + at;
    at += path.size() + 1;
    std::ifstream stream(root + "/" + path, std::ios::binary);
    if (!stream) continue;  // deleted, not yet committed
    files.push_back({path, std::string(std::istreambuf_iterator<char>(stream), {})});
  }
  return files;
}

bool StartsWith(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}
bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}
bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}
bool IsCpp(std::string_view path) { return EndsWith(path, ".h") || EndsWith(path, ".cc"); }
bool IsMachineMade(std::string_view path) { return Contains(path, "/golden/"); }

std::vector<std::string_view> Lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    std::size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

std::string Finding(std::string_view path, std::size_t line, std::string_view what) {
  return std::string(path) + ":" + std::to_string(line) + ": " + std::string(what);
}

std::string CodeOnly(std::string_view text) { return Blanker(text).Run(); }

}  // namespace verbena::tidy
