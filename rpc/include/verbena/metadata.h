#pragma once
// Metadata: key-value pairs that travel beside a call, in order, repeated keys allowed. Keys are
// lower case letters, digits, '-', '_' and '.'; a key that ends in "-bin" may hold any bytes,
// others printable ASCII; the prefix "verbena-" is reserved. A call with more than 8 KiB of it ends
// with RESOURCE_EXHAUSTED.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace verbena {

class Metadata {
 public:
  using Pair = std::pair<std::string, std::string>;

  void Add(absl::string_view key, absl::string_view value);
  // The first value of the key; a view into this object.
  std::optional<absl::string_view> Get(absl::string_view key) const;
  std::vector<absl::string_view> GetAll(absl::string_view key) const;
  // INVALID_ARGUMENT names the pair that breaks the rules above. Calls check it for you.
  absl::Status Validate() const;

  const std::vector<Pair>& pairs() const { return pairs_; }
  std::vector<Pair>::const_iterator begin() const { return pairs_.begin(); }
  std::vector<Pair>::const_iterator end() const { return pairs_.end(); }
  bool empty() const { return pairs_.empty(); }
  size_t size() const { return pairs_.size(); }
  void clear() { pairs_.clear(); }

 private:
  std::vector<Pair> pairs_;
};

}  // namespace verbena
