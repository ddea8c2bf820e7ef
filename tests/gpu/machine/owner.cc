#include "tests/gpu/machine/owner.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpu.verbena.h"
#include "rpc/base/check.h"
#include "tests/gpu/machine/user_memory.h"
#include "verbena/gpu.h"
#include "verbena/verbena.h"

namespace verbena::gpu_test {
namespace {

class OwnerService final : public ::gpu_test::Owner::Service {
 public:
  absl::Status Give(ServerContext&, const ::gpu_test::Wanted& wanted,
                    Parcel<::gpu_test::Given>& reply) override {
    const std::lock_guard lock(mutex_);
    const size_t bytes = wanted.offset() + wanted.bytes();
    Buffer& buffer = memory_[{wanted.memory(), wanted.gpu(), bytes}];
    if (buffer.bytes() == 0) buffer = UserMemory::Make(wanted.memory(), wanted.gpu(), bytes);
    FillAt(buffer.device(), buffer.mutable_data() + wanted.offset(), wanted.bytes(), wanted.seed());
    VERBENA_ASSIGN_OR_RETURN(
        last_, Tensor::Wrap(buffer, kUInt8, Shape(static_cast<int64_t>(wanted.bytes())), Shape(),
                            wanted.offset()));
    reply.Attach(*reply->mutable_tensor(), last_);
    return absl::OkStatus();
  }
  Task<absl::Status> GiveAgain(ServerContext&, const ::gpu_test::Wanted&,
                               Parcel<::gpu_test::Given>& reply) override {
    reply.Attach(*reply->mutable_tensor(), last_);
    co_return absl::OkStatus();
  }
  Task<absl::Status> GiveBlocks(ServerContext&, const ::gpu_test::Blocks& blocks,
                                Parcel<::gpu_test::Given>& reply) override {
    const size_t begin = last_.byte_offset() + size_t{blocks.first()} * blocks.block_bytes();
    VERBENA_CO_ASSIGN_OR_RETURN(
        Tensor tensor, Tensor::Wrap(last_.buffer(), kUInt8,
                                    Shape(blocks.count(), blocks.block_bytes()), Shape(), begin));
    reply.Attach(*reply->mutable_tensor(), tensor);
    co_return absl::OkStatus();
  }
  absl::Status Take(ServerContext&, const Parcel<::gpu_test::Taken>& request,
                    ::gpu_test::Seen& reply) override {
    const Device to = request->gpu() < 0 ? Device::Host() : Device::Cuda(request->gpu());
    VERBENA_ASSIGN_OR_RETURN(Tensor tensor, request.Fetch(request->tensor(), to).Get());
    reply.set_right(FirstWrong(to, tensor.data(), tensor.bytes(), request->seed()) ==
                    (tensor.bytes() + 3) / 4);
    return absl::OkStatus();
  }
  absl::Status Fault(ServerContext&, const ::gpu_test::Wanted& wanted, ::gpu_test::Seen&) override {
    gpu_test::Fault(wanted.gpu());
    return absl::OkStatus();
  }
  absl::Status Free(ServerContext&, const ::gpu_test::Wanted& wanted,
                    ::gpu_test::Seen& reply) override {
    if (wanted.memory() == "none") return absl::OkStatus();
    const std::lock_guard lock(mutex_);
    last_ = Tensor();
    memory_.clear();
    const gpu::Driver& cuda = **gpu::LoadDriver();
    int gpus = 0, active = 0;
    unsigned flags = 0;
    cuda.cuDeviceGetCount(&gpus);
    for (int gpu = 0; gpu < gpus; ++gpu) {
      cuda.cuDevicePrimaryCtxGetState(gpu, &flags, &active);
      reply.add_contexts(active != 0);
    }
    return absl::OkStatus();
  }

 private:
  std::mutex mutex_;
  std::map<std::tuple<std::string, int, size_t>, Buffer> memory_;
  Tensor last_;
};

}  // namespace

int OwnerMain(const std::string& address) {
  const absl::Status gpus = UseGpus();
  VERBENA_CHECK(gpus.ok(), gpus.ToString());
  OwnerService service;
  auto server = Server::Start(ServerOptions().set_listen(address).add_service(service));
  VERBENA_CHECK(server.ok(), server.status().ToString());
  char none;
  while (read(0, &none, 1) > 0) {
  }
  return 0;
}

Owner::Owner(const std::string& environment, const std::string& transport) {
  static int number = 0;
  std::string address = absl::StrCat("unix:/tmp/verbena-gpu-", getpid(), "-", number++, ".sock");
  // Over loopback, as between hosts.
  if (transport == "tcp") address = absl::StrCat("127.0.0.1:", 20000 + getpid() % 20000 + number);
  std::string self = "/proc/self/exe", role = "owner", where = address, more = environment;
  char* argv[] = {self.data(), role.data(), where.data(), nullptr};
  std::vector<char*> variables;
  for (char** v = environ; *v != nullptr; ++v) variables.push_back(*v);
  if (!more.empty()) variables.push_back(more.data());
  variables.push_back(nullptr);
  int input[2];
  VERBENA_CHECK(pipe2(input, O_CLOEXEC) == 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input[0], 0);
  VERBENA_CHECK(posix_spawn(&pid_, argv[0], &actions, nullptr, argv, variables.data()) == 0);
  posix_spawn_file_actions_destroy(&actions);
  close(input[0]);
  input_ = input[1];
  channel_ = Channel::Create(address, ChannelOptions().set_require_transport(transport));
}

Owner::~Owner() {
  close(input_);
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
}

void Owner::Kill() {
  kill(pid_, SIGKILL);
  waitpid(std::exchange(pid_, -1), nullptr, 0);
}

}  // namespace verbena::gpu_test
