#pragma once
// tcp::JoinTable: which bulk connections this process waits for. The client of a link makes them to
// the address where it said HELLO, so that one listening address, forwarded port or proxy serves
// all. Whoever listens there looks at the first bytes of each connection:
//
//   if (tcp::MayBeGreeting(first_bytes)) {          // "VBJ1", then 16 bytes of token
//     ... once kGreetingBytes of it have come:
//     tcp::JoinTable::Get().Join(tcp::TokenOfGreeting(greeting), fd);   // takes fd
//   }
//
// A token is good for one connection and dies with its lane.
#include <map>
#include <memory>
#include <mutex>

#include "rpc/base/ids.h"
#include "rpc/fabric/tcp/bulk_wire.h"
#include "rpc/fabric/tcp/inbox.h"

namespace verbena::fabric::tcp {

class JoinTable {
 public:
  // The process's table.
  static JoinTable& Get();

  // Hands a connection, whose greeting has been read, to the lane that waits for it. Takes `fd`:
  // closes it and returns false if the token is not known, used up, or its lane is gone. Never
  // blocks. Any thread.
  bool Join(const Token& token, int fd);

  // For fabrics: a token for a lane, whose connection will come to `inbox`. Any thread.
  Token Expect(std::shared_ptr<Inbox> inbox, const LaneNews& news);
  void Forget(const Token& token);

 private:
  struct Waiting {
    std::shared_ptr<Inbox> inbox;
    LaneNews news;
  };
  std::mutex mutex_;
  std::map<Token, Waiting> waiting_;
};

}  // namespace verbena::fabric::tcp
