// Has the test digits classified by an inference server.
//   classify [--transport shm|verbs|tcp] ADDRESS DIGITS.csv
#include <cstdio>

#include "examples/03_inference/classification.h"
#include "examples/common/command_line.h"

namespace verbena::examples {
namespace {

void Print(const Digits& digits, size_t begin, const Classification& result) {
  const size_t count = result.answers.size();
  std::printf("the first of them:\n%sis a %d, classified as %d\n",
              Drawing(digits.image(begin)).c_str(), digits.labels[begin], result.answers[0]);
  std::printf("accuracy: %zu of %zu right (%.2f %%)\n", result.right, count,
              100.0 * static_cast<double>(result.right) / static_cast<double>(count));
  std::printf("latency per call: median %.1f us, 99th percentile %.1f us\n",
              absl::ToDoubleMicroseconds(result.latencies[count / 2]),
              absl::ToDoubleMicroseconds(result.latencies[count * 99 / 100]));
  std::printf("transport: %s\n", result.transport.c_str());
}

absl::Status Run(const CommandLine& line) {
  VERBENA_ASSIGN_OR_RETURN(Digits digits, LoadDigits(line.arguments[1]));
  if (digits.count() == 0) return absl::InvalidArgumentError("there are no digits in the file");
  const size_t begin = digits.count() > kTestImageCount ? digits.count() - kTestImageCount : 0;
  std::printf("classifying %zu digits that the network was not trained on\n",
              digits.count() - begin);
  inference::Classifier::Stub stub(Channel::Create(line.arguments[0], line.channel));
  VERBENA_ASSIGN_OR_RETURN(Classification result, Classify(stub, digits, begin));
  Print(digits, begin, result);
  return absl::OkStatus();
}

}  // namespace
}  // namespace verbena::examples

int main(int argc, char** argv) {
  const auto line = verbena::examples::ReadCommandLine(
      argc, argv, 2, "classify [--transport shm|verbs|tcp] ADDRESS DIGITS.csv");
  if (!line) return 2;
  absl::Status status = verbena::examples::Run(*line);
  if (!status.ok()) std::fprintf(stderr, "classify: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
