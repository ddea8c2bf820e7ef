// The tree keeps the house rules. The first test judges the tree; the others judge the judges.
#include <string>
#include <string_view>

#include "tests/catch.h"
#include "tests/tidy/document_rules.h"
#include "tests/tidy/file_rules.h"
#include "tests/tidy/function_lengths.h"
#include "tests/tidy/include_rules.h"
#include "tests/tidy/source_tree.h"

namespace verbena::tidy {
namespace {

std::string Repeat(std::string_view text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

Findings OneInclude(const std::string& path, const std::string& include) {
  return CheckIncludes({path, "#include " + include + "\n"});
}

TEST_CASE("the tree keeps the house rules", "[tidy]") {
  std::vector<SourceFile> tree = LoadTree(VERBENA_SOURCE_DIR);
  REQUIRE(tree.size() > 10);
  Findings findings = CheckNoDeadFiles(tree);
  const Findings cases = CheckLeaseCases(tree);
  findings.insert(findings.end(), cases.begin(), cases.end());
  for (const SourceFile& file : tree) {
    for (auto check :
         {CheckFileLength, CheckTodo, CheckNotGenerated, CheckIncludes, CheckFunctionLengths}) {
      Findings more = check(file);
      findings.insert(findings.end(), more.begin(), more.end());
    }
  }
  std::string all;
  for (const std::string& finding : findings) all += finding + "\n";
  INFO(all);
  CHECK(findings.empty());
}

TEST_CASE("includes point left only", "[tidy]") {
  CHECK(OneInclude("rpc/session/a.cc", "\"rpc/fabric/fabric.h\"").empty());
  CHECK(OneInclude("rpc/memory/a.cc", "\"rpc/memory/b.h\"").empty());
  CHECK(OneInclude("rpc/base/a.cc", "\"verbena/status.h\"").empty());
  CHECK(OneInclude("tests/memory/a.cc", "\"rpc/server/server.h\"").empty());
  CHECK(OneInclude("rpc/gpu/a.cc", "\"rpc/memory/device.h\"").empty());
  CHECK(OneInclude("rpc/memory/a.cc", "\"rpc/fabric/fabric.h\"").size() == 1);
  CHECK(OneInclude("rpc/wire/a.cc", "\"rpc/topology/cores.h\"").size() == 1);
  CHECK(OneInclude("rpc/client/a.cc", "\"rpc/server/dispatch.h\"").size() == 1);
  CHECK(OneInclude("rpc/tensor/a.cc", "\"rpc/gpu/cuda.h\"").size() == 1);
  CHECK(OneInclude("rpc/kitchen/a.cc", "\"rpc/base/ids.h\"").size() == 1);
}

TEST_CASE("one fabric does not see another", "[tidy]") {
  CHECK(OneInclude("rpc/fabric/shm/a.cc", "\"rpc/fabric/fabric.h\"").empty());
  CHECK(OneInclude("rpc/fabric/shm/a.cc", "\"rpc/fabric/shm/ring.h\"").empty());
  CHECK(OneInclude("rpc/fabric/shm/a.cc", "\"rpc/fabric/tcp/socket.h\"").size() == 1);
}

TEST_CASE("public headers see only public ones", "[tidy]") {
  CHECK(OneInclude("rpc/include/verbena/a.h", "\"verbena/b.h\"").empty());
  CHECK(OneInclude("rpc/include/verbena/a.h", "\"absl/status/status.h\"").empty());
  CHECK(OneInclude("rpc/include/verbena/a.h", "\"rpc/base/ids.h\"").size() == 1);
}

TEST_CASE("headers that belong to one room are found elsewhere", "[tidy]") {
  CHECK(OneInclude("rpc/base/log.cc", "<iostream>").size() == 1);
  CHECK(OneInclude("examples/01_unary/client.cc", "<iostream>").empty());
  CHECK(OneInclude("rpc/fabric/verbs/qp.cc", "<infiniband/verbs.h>").empty());
  CHECK(OneInclude("rpc/session/a.cc", "<infiniband/verbs.h>").size() == 1);
  CHECK(OneInclude("rpc/gpu/a.cc", "<cuda.h>").empty());
  CHECK(CheckIncludes({"rpc/memory/a.cc", "#  include <cuda_runtime.h>\n"}).size() == 1);
  CHECK(OneInclude("rpc/memory/a.cc", "<cuda_runtime.h>").size() == 1);
}

TEST_CASE("includes are spelled from the root, a file's own header first", "[tidy]") {
  CHECK(OneInclude("rpc/base/a.cc", "\"a.h\"").size() == 1);
  CHECK(OneInclude("rpc/base/a.cc", "\"../base/a.h\"").size() == 1);
  CHECK(CheckIncludes({"rpc/base/a.cc", "#include \"rpc/base/a.h\"\n#include <map>\n"}).empty());
  CHECK(CheckIncludes({"rpc/base/a.cc", "#include <map>\n#include \"rpc/base/a.h\"\n"}).size() ==
        1);
}

TEST_CASE("a file that is too long is found", "[tidy]") {
  CHECK(CheckFileLength({"rpc/a/b.h", Repeat("\n", 600)}).empty());
  CHECK(CheckFileLength({"rpc/a/b.h", Repeat("\n", 601)}).size() == 1);
  CHECK(CheckFileLength({"rpc/a/b.cc", Repeat("\n", 700)}).empty());
  CHECK(CheckFileLength({"rpc/a/b.cc", Repeat("\n", 701)}).size() == 1);
  CHECK(CheckFileLength({"codegen/golden/b.cc", Repeat("\n", 701)}).empty());
  CHECK(CheckFileLength({"README.md", Repeat("\n", 2000)}).empty());
}

TEST_CASE("a function that is too long is found", "[tidy]") {
  auto function = [](int lines) { return "void F() {\n" + Repeat("  G();\n", lines - 2) + "}\n"; };
  CHECK(CheckFunctionLengths({"rpc/a/b.cc", function(70)}).empty());
  CHECK(CheckFunctionLengths({"codegen/b.cc", function(71)}).size() == 1);
  CHECK(CheckFunctionLengths({"tests/a/b.cc", function(71)}).empty());
  CHECK(
      CheckFunctionLengths({"rpc/a/b.h", "class A {\n public:\n" + function(71) + "};\n"}).size() ==
      1);
}

TEST_CASE("functions are told from everything else with braces", "[tidy]") {
  std::vector<FunctionSpan> functions = Functions(R"(
namespace a { namespace {
enum class E : int { kOne, kTwo };
struct alignas(64) S { int x{1}; std::vector<int> y = {1, 2}; };
const int kTable[] = {1, 2,
  3};
template <class T, class U = S>
class C : public B<T> {
 public:
  C() : a_{1}, b_{Make({2})},
        c_(3) {
    if (x) { y(); }
  }
  ~C() {}
  bool operator==(const C& o) const { return true; }
  auto F(int n = 1) -> Value {
    auto f = [n] { return "}"; /* } */ };
    return {};  // }
  }
#if ONE
  void G() {
#else
  void H() {
#endif
    char c = '{', d = 1'000;
  }
};
}}
const char* kText = R"x(void No() {)x";
extern "C" { void I() { } }
)");
  std::string names;
  for (const FunctionSpan& f : functions) names += f.name + ":" + std::to_string(f.lines) + " ";
  CHECK(names == "C:4 ~C:1 :1 F:4 G:6 I:1 ");
}

TEST_CASE("what must be done now does not land", "[tidy]") {
  const std::string marker = std::string("TODO(") + "now)";
  CHECK(CheckTodo({"rpc/a.cc", "// " + marker + ": x\n"}).size() == 1);
  CHECK(CheckTodo({"rpc/a.cc", "// TODO(perf): x\n"}).empty());
}

TEST_CASE("binary and generated files do not land", "[tidy]") {
  const std::string binary("a\0b", 3);
  CHECK(CheckNotGenerated({"rpc/a.cc", binary}).size() == 1);
  CHECK(CheckNotGenerated({"tests/fuzz/corpus/frame/1", binary}).empty());
  CHECK(CheckNotGenerated({"examples/03_inference/data/digits.safetensors", binary}).empty());
  CHECK(CheckNotGenerated({"rpc/a.pb.h", "x"}).size() == 1);
  CHECK(CheckNotGenerated({"codegen/golden/a.verbena.h", "x"}).empty());
  CHECK(CheckNotGenerated({"rpc/liba.a", "x"}).size() == 1);
  CHECK(CheckNotGenerated({"a.txt", Repeat("0123456789abcdef", 65537)}).size() == 1);
}

TEST_CASE("a file that nothing builds or includes is found", "[tidy]") {
  std::vector<SourceFile> tree = {
      {"rpc/base/CMakeLists.txt", "verbena_room(base SOURCES log.cc\n HEADERS sub/ids.h)"},
      {"rpc/base/log.cc", "#include \"rpc/base/used.h\"\n"},
      {"rpc/base/sub/ids.h", ""},
      {"rpc/base/used.h", ""},
      {"rpc/include/verbena/call.h", ""}};
  CHECK(CheckNoDeadFiles(tree).empty());
  tree.push_back({"rpc/base/catalog.cc", ""});
  tree.push_back({"rpc/base/g.cc", ""});  // "log.cc" ends with it
  tree.push_back({"rpc/base/ids.h", ""});
  CHECK(CheckNoDeadFiles(tree).size() == 3);
  tree.push_back({"rpc/session/peer.h", ""});  // its room is not built yet
  CHECK(CheckNoDeadFiles(tree).size() == 3);
  tree.push_back({"rpc/session/peer.cc", ""});
  CHECK(CheckNoDeadFiles(tree).size() == 4);
}

TEST_CASE("a case of leases that no test covers is found", "[tidy]") {
  const std::string test = "TEST_CASE(\"a small call, \"\n    \"twice\", \"[x]\") {}\n";
  const auto check = [&](const std::string& cases) {
    return CheckLeaseCases(
        {{"tests/session/a_test.cc", test + test},
         {"rpc/session/LEASES.md", "7. [no]\n## Cases\n" + cases + "## More\n8. [no]\n"}});
  };
  CHECK(check("1. Small. [small call, twice]\n2. As well. [a small; twice]\n").empty());
  CHECK(check("1. Small. [a large call]\n").size() == 1);
  CHECK(check("1. Both. [a small; large]\n").size() == 1);
  CHECK(check("Text.\n1. No test.\n").size() == 1);
}

}  // namespace
}  // namespace verbena::tidy
