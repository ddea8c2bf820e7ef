// Calls one method in the three styles, and once wrongly.
//   client [--transport shm|verbs|tcp] ADDRESS
#include <cstdio>
#include <string>

#include "absl/synchronization/notification.h"
#include "examples/common/command_line.h"
#include "hello.verbena.h"
#include "verbena/verbena.h"

namespace {

hello::HelloRequest RequestFor(const std::string& name) {
  hello::HelloRequest request;
  request.set_name(name);
  return request;
}

// Blocks this thread until the reply is here.
absl::Status Blocking(const hello::Greeter::Stub& stub) {
  auto call = stub.SayHello(RequestFor("blocking caller"),
                            verbena::CallOptions().set_timeout(absl::Seconds(1)));
  VERBENA_ASSIGN_OR_RETURN(hello::HelloReply reply, call.Get());
  std::printf("%s (over %s)\n", reply.text().c_str(), std::string(call.report().transport).c_str());
  return absl::OkStatus();
}

// Suspends, and leaves the thread to others. The stub is a cheap value.
verbena::Task<absl::Status> Coroutine(hello::Greeter::Stub stub) {
  hello::HelloRequest request = RequestFor("coroutine");
  VERBENA_CO_ASSIGN_OR_RETURN(hello::HelloReply reply, co_await stub.SayHello(request));
  std::printf("%s\n", reply.text().c_str());
  co_return absl::OkStatus();
}

// Calls back on a reactor thread, exactly once.
absl::Status Callback(const hello::Greeter::Stub& stub) {
  absl::Status status;
  absl::Notification done;
  stub.SayHello(RequestFor("callback")).Then([&](absl::StatusOr<hello::HelloReply> reply) {
    status = reply.status();
    if (reply.ok()) std::printf("%s\n", reply->text().c_str());
    done.Notify();
  });
  done.WaitForNotification();
  return status;
}

// The server's error comes back as it was made.
absl::Status Refused(const hello::Greeter::Stub& stub) {
  absl::Status status = stub.SayHello(RequestFor("")).Get().status();
  std::printf("no name: %s\n", status.ToString().c_str());
  if (absl::IsInvalidArgument(status)) return absl::OkStatus();
  return absl::InternalError("expected INVALID_ARGUMENT");
}

}  // namespace

int main(int argc, char** argv) {
  const auto line = verbena::examples::ReadCommandLine(
      argc, argv, 1, "client [--transport shm|verbs|tcp] ADDRESS");
  if (!line) return 2;
  hello::Greeter::Stub stub(verbena::Channel::Create(line->arguments[0], line->channel));
  absl::Status status = Blocking(stub);
  if (status.ok()) status = verbena::Run(Coroutine(stub));
  if (status.ok()) status = Callback(stub);
  if (status.ok()) status = Refused(stub);
  if (!status.ok()) std::fprintf(stderr, "client: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
