#pragma once
// Server: serves services on one address, over every transport that a client can use.
//   auto server = verbena::Server::Start(
//       verbena::ServerOptions().set_listen(":7000").add_service(service));
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "verbena/service.h"

namespace verbena {

class ServerOptions {
 public:
  ServerOptions() = default;

  // "host:port", ":port" (all interfaces), "127.0.0.1:0" (any free port), "unix:/path". Required.
  // Of a host with several addresses the first that this machine has, IPv6 before IPv4.
  ServerOptions& set_listen(absl::string_view address) & {
    listen_ = std::string(address);
    return *this;
  }
  ServerOptions set_listen(absl::string_view address) && { return std::move(set_listen(address)); }
  // Not owned: must outlive the server.
  ServerOptions& add_service(Service& service) & {
    services_.push_back(&service);
    return *this;
  }
  ServerOptions add_service(Service& service) && { return std::move(add_service(service)); }
  // Owned by the server.
  ServerOptions& add_service(std::shared_ptr<Service> service) & {
    services_.push_back(service.get());
    owned_.push_back(std::move(service));
    return *this;
  }
  ServerOptions add_service(std::shared_ptr<Service> service) && {
    return std::move(add_service(std::move(service)));
  }
  // Offered, of "shm", "verbs", "tcp"; empty = all. At most 8, one of which this process must have.
  ServerOptions& set_transports(std::vector<std::string> names) & {
    transports_ = std::move(names);
    return *this;
  }
  ServerOptions set_transports(std::vector<std::string> names) && {
    return std::move(set_transports(std::move(names)));
  }
  // Largest request that is accepted, tensors not counted; larger ends the call with
  // RESOURCE_EXHAUSTED. 0, the default: 64 MiB, and clients send no more either: a method that
  // takes more says so in its .proto (verbena.v1.request_bytes_max), which comes before this. Below
  // 2 GiB.
  ServerOptions& set_request_bytes_max(uint64_t bytes) & {
    request_bytes_max_ = bytes;
    return *this;
  }
  ServerOptions set_request_bytes_max(uint64_t bytes) && {
    return std::move(set_request_bytes_max(bytes));
  }
  // Threads for methods marked blocking, 1 to 4,096, made when they are needed; up to 16 calls for
  // each wait, further ones end with RESOURCE_EXHAUSTED. Default: 16.
  ServerOptions& set_worker_threads(int count) & {
    worker_threads_ = count;
    return *this;
  }
  ServerOptions set_worker_threads(int count) && { return std::move(set_worker_threads(count)); }
  // More clients are refused with RESOURCE_EXHAUSTED. Default: 16,384.
  ServerOptions& set_connections_max(uint32_t count) & {
    connections_max_ = count;
    return *this;
  }
  ServerOptions set_connections_max(uint32_t count) && {
    return std::move(set_connections_max(count));
  }
  // A peer that connects and says nothing is dropped after this. Default: 5 s.
  ServerOptions& set_handshake_timeout(absl::Duration timeout) & {
    handshake_timeout_ = timeout;
    return *this;
  }
  ServerOptions set_handshake_timeout(absl::Duration timeout) && {
    return std::move(set_handshake_timeout(timeout));
  }
  // How long a client may keep the tensors of a reply unfetched, and with them this server's
  // memory. Then the server takes it back: what was not fetched ends with DATA_LOSS at the client.
  // Longer: a forgetful client holds more memory; shorter: slow ones lose tensors. Default: 30 s.
  ServerOptions& set_reply_lease_age_max(absl::Duration age) & {
    reply_lease_age_max_ = age;
    return *this;
  }
  ServerOptions set_reply_lease_age_max(absl::Duration age) && {
    return std::move(set_reply_lease_age_max(age));
  }

  const std::string& listen() const { return listen_; }
  const std::vector<Service*>& services() const { return services_; }
  const std::vector<std::shared_ptr<Service>>& owned_services() const { return owned_; }
  const std::vector<std::string>& transports() const { return transports_; }
  uint64_t request_bytes_max() const { return request_bytes_max_; }
  int worker_threads() const { return worker_threads_; }
  uint32_t connections_max() const { return connections_max_; }
  absl::Duration handshake_timeout() const { return handshake_timeout_; }
  absl::Duration reply_lease_age_max() const { return reply_lease_age_max_; }

 private:
  std::string listen_;
  std::vector<Service*> services_;
  std::vector<std::shared_ptr<Service>> owned_;
  std::vector<std::string> transports_;
  uint64_t request_bytes_max_ = 0;
  int worker_threads_ = 16;
  uint32_t connections_max_ = 16 * 1024;
  absl::Duration handshake_timeout_ = absl::Seconds(5);
  absl::Duration reply_lease_age_max_ = absl::Seconds(30);
};

namespace internal {
class ServerCore;  // rpc/server/server_core.h
}

class Server {
 public:
  // Serves when it returns. ALREADY_EXISTS (a method is served twice, or the address is in use),
  // INVALID_ARGUMENT (the address, or an option out of range), FAILED_PRECONDITION (none of
  // set_transports is here), UNAVAILABLE (the system's reason); each names the value. Any thread
  // but a reactor's.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);
  // Shutdown().
  //
  // Neither it nor the others may be called where handlers or callbacks run (a reactor's thread, or
  // a handler of this server's that is marked blocking): they wait for those, so the process ends
  // with a message instead. Post it to a thread of the application's.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // The address that was bound, e.g. "127.0.0.1:43210".
  const std::string& address() const;
  // Tells clients to go elsewhere, refuses new calls, lets running ones finish until `deadline`,
  // then revokes and closes. Blocks until all is over.
  void Drain(absl::Time deadline);
  // At once: running calls are cancelled, their clients get UNAVAILABLE. Returns when no handler
  // runs any more: handlers that look at their context end it sooner. Any thread but a reactor's.
  void Shutdown();
  // Blocks until Shutdown or Drain, called by another thread, has ended. Any thread but a
  // reactor's.
  void Wait();

 private:
  explicit Server(std::shared_ptr<internal::ServerCore> core) : core_(std::move(core)) {}
  std::shared_ptr<internal::ServerCore> core_;
};

}  // namespace verbena
