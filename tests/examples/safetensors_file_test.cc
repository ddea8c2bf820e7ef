#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "examples/03_inference/safetensors.h"
#include "examples/03_inference/truncation.h"
#include "tests/catch.h"
#include "tests/examples/temporary_file.h"

namespace verbena::safetensors {
namespace {

using Catch::ContainsSubstring;
using examples::LittleEndian;
using examples::TemporaryFile;

std::string FileOf(const std::string& header, const std::string& data) {
  return LittleEndian(header.size()) + header + data;
}
const char kTwoBytes[] = R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";

std::string ErrorOf(const std::string& contents) {
  TemporaryFile temporary(contents);
  absl::StatusOr<File> file = File::Open(temporary.path());
  if (file.ok()) return "opened";
  CHECK(file.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(file.status().message()), ContainsSubstring(temporary.path()));
  return std::string(file.status().message());
}

}  // namespace

TEST_CASE("an opened file shows its bytes in place and survives a move", "[safetensors]") {
  TemporaryFile temporary(FileOf(kTwoBytes, "xy"));
  absl::StatusOr<File> opened = File::Open(temporary.path());
  REQUIRE(opened.ok());
  File file = *std::move(opened);
  REQUIRE(file.tensors().size() == 1);
  const TensorInfo* tensor = file.Find("t");
  REQUIRE(tensor != nullptr);
  CHECK(file.Find("u") == nullptr);
  REQUIRE(file.data(*tensor).size() == 2);
  CHECK(file.data(*tensor)[1] == std::byte{'y'});
  // The file is written in place. Expect: the mapping shows it (no copy was made), and the check
  // says so.
  CHECK(file.CheckUnchanged().ok());
  temporary.Write(LittleEndian(0).size() + sizeof(kTwoBytes) - 1, "ab");
  CHECK(file.data(*tensor)[1] == std::byte{'b'});
}

TEST_CASE("a truncated file is refused at every length", "[safetensors]") {
  const std::string whole = FileOf(kTwoBytes, "xy");
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const std::string error = ErrorOf(whole.substr(0, bytes));
    INFO(bytes);
    if (bytes < 10) {
      CHECK_THAT(error, ContainsSubstring(
                            absl::StrCat("the file has ", bytes, " bytes, the smallest is 10")));
    } else if (bytes < 8 + sizeof(kTwoBytes) - 1) {
      CHECK_THAT(error,
                 ContainsSubstring(absl::StrCat("but only ", bytes - 8, " bytes follow it")));
    } else {
      CHECK_THAT(error, ContainsSubstring("tensor 't': data_offsets end at 2"));
    }
  }
  CHECK_THAT(ErrorOf(whole + "z"),
             ContainsSubstring("the tensors end at 2, the file has 3 bytes of data"));
}

TEST_CASE("a header length above the file or the limit is refused", "[safetensors]") {
  CHECK_THAT(ErrorOf(LittleEndian(3) + "{}"),
             ContainsSubstring("length is 3, but only 2 bytes follow it"));
  CHECK_THAT(ErrorOf(LittleEndian(UINT64_MAX) + "{}"),
             ContainsSubstring("length is 18446744073709551615, allowed are 2"));
  CHECK_THAT(ErrorOf(LittleEndian(UINT64_MAX - 7) + "{}"),
             ContainsSubstring("allowed are 2 to 100000000"));
  CHECK_THAT(ErrorOf(LittleEndian(kHeaderBytesMax + 1) + "{}"),
             ContainsSubstring("length is 100000001"));
  CHECK_THAT(ErrorOf(LittleEndian(0) + "{}"), ContainsSubstring("length is 0, allowed are 2"));
  CHECK_THAT(ErrorOf("not one, but a text"), ContainsSubstring("is it a .safetensors file?"));
}

TEST_CASE("what is no regular file is an error, not a wait", "[safetensors]") {
  CHECK(File::Open("/nonexistent/x").status().code() == absl::StatusCode::kNotFound);
  CHECK_THAT(std::string(File::Open("/tmp").status().message()),
             ContainsSubstring("/tmp: not a regular file"));
  TemporaryFile temporary("");
  const std::string pipe = temporary.path() + ".pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THAT(std::string(File::Open(pipe).status().message()),
             ContainsSubstring("not a regular file"));
  unlink(pipe.c_str());
}

TEST_CASE("tensors beyond 4 GiB are mapped where they are", "[safetensors]") {
  // A sparse file of 6 GiB: one big tensor, then 4 bytes.
  constexpr uint64_t big = uint64_t{6} << 30;
  const std::string header = absl::StrCat(
      R"({"big":{"dtype":"F32","shape":[3,536870912],"data_offsets":[0,)", big,
      R"(]},"last":{"dtype":"U8","shape":[4],"data_offsets":[)", big, ",", big + 4, "]}}");
  TemporaryFile temporary(FileOf(header, ""));
  temporary.Truncate(8 + header.size() + big);
  temporary.Write(8 + header.size() + big, "last");
  temporary.Write(8 + header.size() + big - 1, "B");
  absl::StatusOr<File> file = File::Open(temporary.path());
  INFO(file.status().ToString());
  REQUIRE(file.ok());
  REQUIRE(file->tensors().size() == 2);
  CHECK(file->tensors()[0].bytes == big);
  CHECK(file->data(file->tensors()[0])[big - 1] == std::byte{'B'});
  CHECK(file->data(file->tensors()[1])[0] == std::byte{'l'});
  CHECK(file->data(file->tensors()[1])[3] == std::byte{'t'});
}

TEST_CASE("a file that changes under the mapping is told by CheckUnchanged", "[safetensors]") {
  TemporaryFile temporary(FileOf(kTwoBytes, "xy"));
  absl::StatusOr<File> file = File::Open(temporary.path());
  REQUIRE(file.ok());
  // The file is replaced by rename. Expect: the open one is untouched.
  {
    TemporaryFile other("other contents");
    REQUIRE(link(other.path().c_str(), (other.path() + ".new").c_str()) == 0);
    REQUIRE(rename((other.path() + ".new").c_str(), temporary.path().c_str()) == 0);
  }
  CHECK(file->CheckUnchanged().ok());
  CHECK(file->data(file->tensors()[0])[0] == std::byte{'x'});
  // The file is truncated. Expect: both sizes are named.
  temporary.Truncate(8);
  absl::Status status = file->CheckUnchanged();
  CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(status.message()), ContainsSubstring("and has 8 now"));
}

TEST_CASE("a process that reads a truncated file says which before SIGBUS ends it",
          "[safetensors]") {
  const std::string header = R"({"t":{"dtype":"U8","shape":[65536],"data_offsets":[0,65536]}})";
  TemporaryFile temporary(FileOf(header, std::string(65536, 'x')));
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    signal(SIGBUS, SIG_DFL);  // Not the test framework's, which would report a failed test.
    truncation::ReportOnSigbus();
    absl::StatusOr<File> file = File::Open(temporary.path());
    if (!file.ok() || truncate(temporary.path().c_str(), 100) != 0) _exit(1);
    volatile std::byte last = file->data(file->tensors()[0])[65535];
    _exit(last == std::byte{'x'} ? 2 : 3);
  }
  close(ends[1]);
  std::string said;
  char buffer[256];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;)
    said.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGBUS);
  CHECK_THAT(said, ContainsSubstring(absl::StrCat("fatal: ", temporary.path(), " was truncated")));
}

}  // namespace verbena::safetensors
