#include "benchmarks/peers/grpc/grpc_peer.h"

#include <chrono>

#include "absl/strings/str_cat.h"

namespace verbena::benchmarks {

ClientBasics::ClientBasics(const Params& params)
    : put(params.workload() == "put"), outstanding(params.outstanding()) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  channel =
      grpc::CreateCustomChannel(params.address(), grpc::InsecureChannelCredentials(), arguments);
  stub = pb::Benchmark::NewStub(channel);
  request.set_payload(std::string(params.payload_bytes(), 'x'));
}

absl::Status Connect(const ClientBasics& basics) {
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(10);
  if (!basics.channel->WaitForConnected(deadline))
    return absl::UnavailableError("no connection in 10 s");
  return absl::OkStatus();
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

std::string ListenOn(grpc::ServerBuilder& builder, const Params& params, int* port) {
  const std::string listen =
      params.transport() == "tcp" ? "127.0.0.1:0" : "unix:" + params.directory() + "/grpc";
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), port);
  return listen;
}

std::string AddressOf(const Params& params, const std::string& listen, int port) {
  return params.transport() == "tcp" ? absl::StrCat("127.0.0.1:", port) : listen;
}

}  // namespace verbena::benchmarks
