#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iostream>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "peer.verbena.h"
#include "rpc/base/check.h"
#include "rpc/base/log.h"
#include "rpc/memory/pool.h"
#include "rpc/reactor/reactors.h"
#include "rpc/session/engines.h"
#include "tests/system/peer.h"
#include "verbena/verbena.h"

namespace verbena::system_test {
namespace {

class Service final : public test::Peer::Service {
 public:
  Task<absl::Status> Echo(ServerContext&, const test::EchoRequest& request,
                          test::EchoReply& reply) override {
    reply.set_data(request.reply_bytes() == 0 ? request.data()
                                              : std::string(request.reply_bytes(), 'r'));
    return absl::OkStatus();
  }
  Task<absl::Status> Hold(ServerContext& context, const test::HoldRequest&,
                          test::HoldReply&) override {
    co_await context.Cancelled();
    co_return absl::CancelledError("held until it was cancelled");
  }
  Task<absl::Status> Take(ServerContext&, const Parcel<test::TakeRequest>& request,
                          test::TakeReply&) override {
    for (uint32_t i = 0; i < std::max(request->times(), 1u); ++i) {
      Call<Buffer> fetch = request.Fetch(request->payload());
      absl::StatusOr<Buffer> got = co_await fetch;
      {
        absl::MutexLock lock(&mutex_);
        last_fetch_ = got.status();
      }
      if (!got.ok()) co_return got.status();
    }
    co_return absl::OkStatus();
  }
  Task<absl::Status> Give(ServerContext&, const test::GiveRequest& request,
                          Parcel<test::GiveReply>& reply) override {
    absl::StatusOr<Buffer> buffer = Kept(request.bytes());
    if (!buffer.ok()) return buffer.status();
    reply.Attach(*reply->mutable_payload(), *std::move(buffer));
    return absl::OkStatus();
  }

  absl::Status last_fetch() {
    absl::MutexLock lock(&mutex_);
    return last_fetch_;
  }

 private:
  absl::StatusOr<Buffer> Kept(uint64_t bytes) {
    absl::MutexLock lock(&mutex_);
    Buffer& kept = kept_[bytes];
    if (kept.data() == nullptr) {
      VERBENA_ASSIGN_OR_RETURN(kept, Buffer::Allocate(bytes));
    }
    return kept;
  }

  absl::Mutex mutex_;
  absl::Status last_fetch_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Buffer> kept_ ABSL_GUARDED_BY(mutex_);
};

// Counts one reactor's links, in its seat.
struct Count : reactor::Work {
  explicit Count(reactor::Reactor& reactor)
      : Work([](reactor::Work* work) { static_cast<Count*>(work)->Run(); }),
        engine(session::EngineOf(reactor)) {
    reactor.PostSeat(*this);
    reactor.DriveUntil(done);
  }
  void Run() {
    counters = engine.counters();
    links = engine.Links().size();
    reactor::Reactor& reactor = engine.reactor();
    done.store(1, std::memory_order_release);
    reactor.Wake(done);
  }
  session::Engine& engine;
  session::Engine::Counters counters;
  uint64_t links = 0;
  std::atomic<uint32_t> done{0};
};

std::string State(Service& service) {
  uint64_t links = 0, calls = 0, leases = 0, fetches = 0;
  for (reactor::Reactor* reactor : reactor::Reactors()) {
    const Count count(*reactor);
    links += count.links;
    calls += count.counters.calls_live;
    leases += count.counters.leases_live;
    fetches += count.counters.fetches_live;
  }
  return absl::StrCat("links=", links, " calls=", calls, " leases=", leases, " fetches=", fetches,
                      " used=", memory::PoolHere().stats().used_bytes,
                      " fetch=", absl::StatusCodeToString(service.last_fetch().code()));
}

// No more memory than is mapped now and `more_bytes`.
void LimitMemory(uint64_t more_bytes) {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit limit;
  getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = pages * 4096 + more_bytes;
  setrlimit(RLIMIT_AS, &limit);
}

uint64_t Number(const std::vector<std::string>& command, size_t index) {
  uint64_t value = 0;
  VERBENA_CHECK(command.size() > index && absl::SimpleAtoi(command[index], &value));
  return value;
}

// What it logs, beside showing it.
class Log {
 public:
  Log() {
    SetLogSink([this](LogLevel, absl::string_view line) {
      absl::MutexLock lock(&mutex_);
      if (lines_.size() < kLinesMax) lines_.emplace_back(line);
      std::cerr << line << std::endl;
    });
  }
  size_t Count(const std::string& words) {
    absl::MutexLock lock(&mutex_);
    return static_cast<size_t>(std::count_if(
        lines_.begin(), lines_.end(),
        [&](const std::string& line) { return line.find(words) != std::string::npos; }));
  }

 private:
  static constexpr size_t kLinesMax = 100'000;
  absl::Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

Log& TheLog() {
  static Log* const log = new Log;
  return *log;
}

}  // namespace

int RunServer(const std::vector<std::string>& arguments) {
  TheLog();
  Service service;
  ServerOptions options;
  options.set_listen(arguments[1]).add_service(service);
  for (size_t i = 2; i + 1 < arguments.size(); i += 2) {
    if (arguments[i] == "handshake_ms") {
      options.set_handshake_timeout(absl::Milliseconds(Number(arguments, i + 1)));
    } else if (arguments[i] == "lease_ms") {
      options.set_reply_lease_age_max(absl::Milliseconds(Number(arguments, i + 1)));
    } else if (arguments[i] == "memory") {
      const absl::Status limited =
          InitRuntime(RuntimeOptions().set_memory_bytes_max(Number(arguments, i + 1)));
      VERBENA_CHECK(limited.ok(), limited.ToString());
    } else if (arguments[i] == "transport") {
      options.set_transports(absl::StrSplit(arguments[i + 1], ','));
    } else {
      VERBENA_CHECK(false, "unknown option ", arguments[i]);
    }
  }
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options);
  VERBENA_CHECK(server.ok(), server.status().ToString());
  Answer((*server)->address());
  for (auto command = NextCommand(); !command.empty(); command = NextCommand()) {
    if (command[0] == "state") {
      Answer(State(service));
    } else if (command[0] == "verbs") {
      Answer(VerbsState());
    } else if (command[0] == "drain") {
      const absl::Time began = absl::Now();
      (*server)->Drain(began + absl::Milliseconds(Number(command, 1)));
      Answer(absl::StrCat("drained=", absl::ToInt64Milliseconds(absl::Now() - began)));
    } else if (command[0] == "log") {
      Answer(absl::StrCat(TheLog().Count(absl::StrJoin(command.begin() + 1, command.end(), " "))));
    } else if (command[0] == "limit") {
      LimitMemory(Number(command, 1) << 20);
      Answer("limited");
    } else if (command[0] == "fork") {
      ForkChild();
    } else {
      VERBENA_CHECK(false, "unknown command ", command[0]);
    }
  }
  return 0;
}

}  // namespace verbena::system_test
