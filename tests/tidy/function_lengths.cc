#include "tests/tidy/function_lengths.h"

#include <cctype>

namespace verbena::tidy {
namespace {

constexpr std::size_t kFunctionLinesMax = 70;

bool IsWordPart(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
bool IsSpace(char c) { return std::isspace(static_cast<unsigned char>(c)); }

bool HasWord(std::string_view text, std::string_view word) {
  for (std::size_t at = text.find(word); at != std::string_view::npos;
       at = text.find(word, at + 1)) {
    bool starts = at == 0 || !IsWordPart(text[at - 1]);
    std::size_t end = at + word.size();
    if (starts && (end == text.size() || !IsWordPart(text[end]))) return true;
  }
  return false;
}

std::string LastWord(std::string_view text) {
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  std::size_t start = text.size();
  while (start > 0 && (IsWordPart(text[start - 1]) || text[start - 1] == '~')) --start;
  return std::string(text.substr(start));
}

// What a brace outside of functions opens, judged by the text before it.
enum class Opens { kScope, kFunction, kInitializer };

class Scanner {
 public:
  explicit Scanner(std::string_view text) : code_(CodeOnly(text)) {}

  std::vector<FunctionSpan> Run() {
    while (at_ < code_.size()) {
      char c = code_[at_];
      if (c == '\n') ++line_;
      if (c == '{') {
        OpenBrace();
      } else if (c == ';' || c == '}') {
        head_.clear();
      } else if (!head_.empty() || !IsSpace(c)) {
        if (head_.empty()) head_line_ = line_;
        head_ += c;
        if (IsAccessLabel()) head_.clear();
      }
      ++at_;
    }
    return std::move(functions_);
  }

 private:
  bool IsAccessLabel() const {
    return head_ == "public:" || head_ == "private:" || head_ == "protected:";
  }

  Opens Judge() const {
    // Template parameters may say `class`; parameter lists and what follows them decide.
    std::string_view head = head_;
    std::size_t parameters = head.find('(');
    std::string_view before = head.substr(0, parameters);
    if (HasWord(head, "namespace") || Contains(head, "extern 0")) return Opens::kScope;
    bool is_operator = HasWord(before, "operator");
    if (!is_operator && Contains(before, "=") && !StartsWith(head, "template")) {
      return Opens::kInitializer;
    }
    if (parameters == std::string_view::npos)
      return IsType(head) ? Opens::kScope : Opens::kInitializer;
    if (StartsType(head)) return Opens::kScope;  // struct alignas(64) X
    return InMemberInitializers(head) ? Opens::kInitializer : Opens::kFunction;
  }

  static bool IsType(std::string_view head) {
    return HasWord(head, "class") || HasWord(head, "struct") || HasWord(head, "union") ||
           HasWord(head, "enum");
  }
  static bool StartsType(std::string_view head) {
    std::string first(head.substr(0, head.find_first_of(" \n(")));
    return first == "class" || first == "struct" || first == "union" || first == "enum";
  }

  // `X() : a_{1}`: the brace follows a member's name, and a lone colon stands after the parameters.
  static bool InMemberInitializers(std::string_view head) {
    std::size_t colon = std::string_view::npos;
    int depth = 0;
    for (std::size_t i = 0; i < head.size(); ++i) {
      if (head[i] == '(') ++depth;
      if (head[i] == ')') --depth;
      bool lone = head[i] == ':' && (i + 1 == head.size() || head[i + 1] != ':') &&
                  (i == 0 || head[i - 1] != ':');
      if (lone && depth == 0 && head.find(')') < i) colon = i;
    }
    if (colon == std::string_view::npos) return false;
    std::size_t last = head.find_last_not_of(" \n");
    return IsWordPart(head[last]) || head[last] == '>';
  }

  void OpenBrace() {
    switch (Judge()) {
      case Opens::kScope:
        head_.clear();
        break;
      case Opens::kInitializer:
        SkipBraces();
        head_ += ')';  // A value was here; what follows still belongs to the declaration.
        break;
      case Opens::kFunction: {
        std::string name = LastWord(std::string_view(head_).substr(0, head_.find('(')));
        SkipBraces();
        functions_.push_back({name, head_line_, line_ - head_line_ + 1});
        head_.clear();
        break;
      }
    }
  }

  // From an opening brace to the one that closes it.
  void SkipBraces() {
    for (int depth = 0; at_ < code_.size(); ++at_) {
      if (code_[at_] == '\n') ++line_;
      if (code_[at_] == '{') ++depth;
      if (code_[at_] == '}' && --depth == 0) return;
    }
  }

  std::string code_;
  std::size_t at_ = 0;
  std::size_t line_ = 1;
  std::string head_;  // the declaration so far
  std::size_t head_line_ = 1;
  std::vector<FunctionSpan> functions_;
};

}  // namespace

std::vector<FunctionSpan> Functions(std::string_view text) { return Scanner(text).Run(); }

Findings CheckFunctionLengths(const SourceFile& file) {
  Findings findings;
  bool bound = StartsWith(file.path, "rpc/") || StartsWith(file.path, "codegen/");
  if (!bound || !IsCpp(file.path) || IsMachineMade(file.path)) return findings;
  for (const FunctionSpan& function : Functions(file.text)) {
    if (function.lines <= kFunctionLinesMax) continue;
    findings.push_back(Finding(file.path, function.line,
                               function.name + " has " + std::to_string(function.lines) +
                                   " lines; the limit is " + std::to_string(kFunctionLinesMax)));
  }
  return findings;
}

}  // namespace verbena::tidy
