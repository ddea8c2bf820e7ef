#pragma once
// What is to be reached, beside what was: each with the driver's own copy of the same run.
#include <string>
#include <vector>

namespace verbena::gpu_test {

class Goals {
 public:
  // `value` has to be at least, or at most, `bound`.
  void AtLeast(const std::string& what, double bound, double value) { Add(what, bound, value, 1); }
  void AtMost(const std::string& what, double bound, double value) { Add(what, bound, value, -1); }
  void Print() const;

 private:
  void Add(const std::string& what, double bound, double value, int sign);
  std::vector<std::string> rows_;
};

}  // namespace verbena::gpu_test
