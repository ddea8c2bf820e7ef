// Pulls a tensor of another process's GPU to a GPU of its own: to the second one, or to the only
// one, or, where there is none, to the host. Exit status 77: there is no GPU, so none was shown.
//   client [--transport shm|verbs|tcp] ADDRESS
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "examples/common/command_line.h"
#include "examples/common/gpu.h"
#include "keeper.verbena.h"
#include "verbena/verbena.h"

namespace {

using verbena::examples::Gpu;

// Looks at every element, by way of the host.
absl::Status Check(const verbena::Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  if (tensor.device() == verbena::Device::Host()) {
    VERBENA_ASSIGN_OR_RETURN(absl::Span<const float> here, tensor.Values<float>());
    values.assign(here.begin(), here.end());
  } else {
    VERBENA_ASSIGN_OR_RETURN(auto gpu, Gpu::Open(tensor.device().index()));
    VERBENA_RETURN_IF_ERROR(gpu->CopyToHost(values.data(), tensor.data(), tensor.bytes()));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == static_cast<float>(i % 1000)) continue;
    return absl::DataLossError(absl::StrCat("element ", i, " is ", values[i]));
  }
  return absl::OkStatus();
}

absl::Status Fetch(const keeper::Keeper::Stub& stub, verbena::Device to) {
  const std::string name =
      to == verbena::Device::Host() ? "host memory" : absl::StrCat("cuda:", to.index());
  // The first fetch opens the owner's memory; the later ones show what a copy takes.
  for (const char* which : {"first", "second", "third"}) {
    VERBENA_ASSIGN_OR_RETURN(auto reply, stub.Get(keeper::GetRequest()).Get());
    const absl::Time start = absl::Now();
    auto call = reply.Fetch(reply->tensor(), to);
    VERBENA_ASSIGN_OR_RETURN(verbena::Tensor tensor, call.Get());
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    const auto path = std::string(verbena::PathName(call.report().path));
    std::printf("%s fetch: %zu MiB from %s to %s by %s in %.3f ms, %.1f GB/s\n", which,
                tensor.bytes() >> 20, reply->where().c_str(), name.c_str(), path.c_str(),
                seconds * 1e3, static_cast<double>(tensor.bytes()) / seconds / 1e9);
    VERBENA_RETURN_IF_ERROR(Check(tensor));
  }
  std::printf("every element is right\n");
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  const auto line = verbena::examples::ReadCommandLine(
      argc, argv, 1, "client [--transport shm|verbs|tcp] ADDRESS");
  if (!line) return 2;
  const absl::StatusOr<int> gpus = verbena::examples::UseAllGpus();
  verbena::Device to;
  if (gpus.ok()) to = verbena::Device::Cuda(*gpus > 1 ? 1 : 0);
  if (gpus.ok() && *gpus == 1) std::printf("one GPU only: from its memory to its memory\n");
  const keeper::Keeper::Stub stub(verbena::Channel::Create(line->arguments[0], line->channel));
  const absl::Status status = Fetch(stub, to);
  if (!status.ok()) {
    std::fprintf(stderr, "client: %s\n", status.ToString().c_str());
    return 1;
  }
  if (gpus.ok()) return 0;
  std::printf("skipped: the GPU part, since %s\n", std::string(gpus.status().message()).c_str());
  return 77;
}
