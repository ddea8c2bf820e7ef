#include "benchmarks/paths/owner.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <mutex>

#include "benchmarks/paths/plain_socket.h"
#include "paths.verbena.h"
#include "rpc/base/check.h"
#include "tests/gpu/machine/user_memory.h"
#include "verbena/gpu.h"
#include "verbena/verbena.h"

namespace verbena::benchmarks::paths {
namespace {

class OwnerService final : public ::paths::Owner::Service {
 public:
  absl::Status Make(ServerContext&, const ::paths::Wanted& wanted, ::paths::Made& reply) override {
    const std::lock_guard lock(mutex_);
    const auto bytes = static_cast<int64_t>(wanted.bytes());
    memory_ = gpu_test::UserMemory::Make(wanted.pool() ? "pool" : "library", 0, wanted.bytes());
    gpu_test::FillAt(Device::Cuda(0), memory_.mutable_data(), wanted.bytes(), kSeed);
    VERBENA_ASSIGN_OR_RETURN(tensor_, Tensor::Wrap(memory_, kUInt8, Shape(bytes)));
    VERBENA_ASSIGN_OR_RETURN(host_, Tensor::Empty(kUInt8, Shape(bytes)));
    plain_ = std::make_unique<PlainSender>(memory_);
    reply.set_port(plain_->port());
    return absl::OkStatus();
  }
  absl::Status Give(ServerContext&, const ::paths::Way& way,
                    Parcel<::paths::Given>& reply) override {
    const std::lock_guard lock(mutex_);
    if (way.staged()) {
      gpu_test::CopyNow(0, host_.mutable_data(), tensor_.data(), tensor_.bytes());
    }
    reply.Attach(*reply->mutable_tensor(), way.staged() ? host_ : tensor_);
    return absl::OkStatus();
  }
  Task<absl::Status> Usage(ServerContext&, const ::paths::UsageRequest&,
                           ::paths::UsageReply& reply) override {
    reply.set_cpu_seconds(CpuSeconds());
    return absl::OkStatus();
  }

 private:
  std::mutex mutex_;
  Buffer memory_;
  Tensor tensor_, host_;
  std::unique_ptr<PlainSender> plain_;
};

}  // namespace

int OwnerMain() {
  const absl::Status gpus = UseGpus();
  VERBENA_CHECK(gpus.ok(), gpus.ToString());
  OwnerService service;
  auto server = Server::Start(ServerOptions().set_listen("localhost:0").add_service(service));
  VERBENA_CHECK(server.ok(), server.status().ToString());
  std::printf("%s\n", (*server)->address().c_str());
  std::fflush(stdout);
  char none;
  while (read(0, &none, 1) > 0) {
  }
  return 0;
}

OwnerProcess::OwnerProcess() {
  std::string self = "/proc/self/exe", role = "owner";
  char* argv[] = {self.data(), role.data(), nullptr};
  int input[2], output[2];
  VERBENA_CHECK(pipe2(input, O_CLOEXEC) == 0 && pipe2(output, O_CLOEXEC) == 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input[0], 0);
  posix_spawn_file_actions_adddup2(&actions, output[1], 1);
  VERBENA_CHECK(posix_spawn(&pid_, argv[0], &actions, nullptr, argv, environ) == 0);
  posix_spawn_file_actions_destroy(&actions);
  close(input[0]);
  close(output[1]);
  input_ = input[1];
  char next = 0;
  while (read(output[0], &next, 1) == 1 && next != '\n') address_ += next;
  close(output[0]);
  VERBENA_CHECK(next == '\n', "the owner did not start");
}

OwnerProcess::~OwnerProcess() {
  close(input_);
  waitpid(pid_, nullptr, 0);
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace verbena::benchmarks::paths
