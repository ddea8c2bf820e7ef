#include "rpc/fabric/tcp/join_table.h"

#include <unistd.h>

#include <utility>

#include "rpc/fabric/tcp/sockets.h"

namespace verbena::fabric::tcp {

JoinTable& JoinTable::Get() {
  static JoinTable* const table = new JoinTable;  // outlives every thread that uses it
  return *table;
}

bool JoinTable::Join(const Token& token, int fd) {
  Waiting waiting;
  {
    const std::lock_guard lock(mutex_);
    const auto it = waiting_.find(token);
    if (it != waiting_.end()) {
      waiting = std::move(it->second);
      waiting_.erase(it);
    }
  }
  if (waiting.inbox == nullptr) {
    close(fd);
    return false;
  }
  PrepareSocket(fd);
  UnpaceWithinHost(fd);
  waiting.news.fd = fd;
  waiting.inbox->Post(waiting.news);
  return true;
}

Token JoinTable::Expect(std::shared_ptr<Inbox> inbox, const LaneNews& news) {
  Token token;
  FillRandom(token.data(), sizeof token);
  const std::lock_guard lock(mutex_);
  waiting_[token] = Waiting{std::move(inbox), news};
  return token;
}

void JoinTable::Forget(const Token& token) {
  const std::lock_guard lock(mutex_);
  waiting_.erase(token);
}

}  // namespace verbena::fabric::tcp
