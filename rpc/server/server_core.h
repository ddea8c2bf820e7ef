#pragma once
// internal::ServerCore: what a Server is: its methods, its listener, and the links that clients
// have opened. The session calls it from every reactor; its tables do not change after Start.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "rpc/server/server_call.h"
#include "rpc/server/worker_pool.h"
#include "rpc/session/bootstrap.h"
#include "rpc/session/session.h"
#include "verbena/server.h"

namespace verbena::internal {

class ServerCore final : public session::RequestSink {
 public:
  explicit ServerCore(const ServerOptions& options);
  ~ServerCore();

  absl::Status Start();
  const std::string& address() const { return address_; }
  void Drain(absl::Time deadline);
  void Shutdown();
  void Wait();

  WorkerPool& workers() { return workers_; }
  // A call is over for its link, but who waited on its context has still to be told. Shutdown waits
  // for it; the call touches nothing of the server after CallLeaves. In a reactor's seat.
  void CallLingers();
  void CallLeaves();

  void* Resolve(absl::string_view path) override;
  uint64_t RequestBytesMax(void* method_cookie) override;
  session::ServerCall* OnRequest(session::Link& link, session::RequestView& request) override;
  void OnLinkUp(session::Link& link) override;
  void OnLinkDown(session::Link& link, const absl::Status& cause) override;

 private:
  absl::Status AddService(Service& service);
  // Ends the process where handlers of the server run, which what follows would wait for.
  void CheckMayBlock() const;
  void StopListening();
  // Runs `act` for each link in the seat of its reactor, and returns when all have run.
  void ForEachLink(void (*act)(session::Link& link, int64_t argument), int64_t argument);
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return links_.empty() && lingering_ == 0;
  }

  const ServerOptions options_;
  WorkerPool workers_;
  absl::flat_hash_map<std::string, std::unique_ptr<ServedMethod>> methods_;
  std::string address_;
  absl::Mutex listener_mutex_;
  std::unique_ptr<session::Listener> listener_ ABSL_GUARDED_BY(listener_mutex_);
  absl::Mutex mutex_;
  absl::flat_hash_set<session::Link*> links_ ABSL_GUARDED_BY(mutex_);
  size_t lingering_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace verbena::internal
