#pragma once
// One call under way on each of many channels, all the time.
#include <memory>
#include <string>
#include <vector>

#include "verbena/channel.h"

namespace verbena::system_test {

class Spread {
 public:
  explicit Spread(const std::vector<std::shared_ptr<Channel>>& channels);
  // Waits for the calls under way. "good=G bad=B least=L most=M": all calls, and those of the
  // channels with the fewest and with the most good ones.
  std::string Stop();

 private:
  struct Turns;
  std::shared_ptr<Turns> turns_;
};

}  // namespace verbena::system_test
