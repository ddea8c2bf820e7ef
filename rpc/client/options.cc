#include "verbena/options.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "verbena/context.h"

namespace verbena {

CallOptions::CallOptions(const CallOptions& other)
    : timeout_(other.timeout_),
      deadline_(other.deadline_),
      rare_(other.rare_ != nullptr ? std::make_unique<Rare>(*other.rare_) : nullptr),
      timed_(other.timed_),
      wait_for_ready_(other.wait_for_ready_) {}

CallOptions& CallOptions::operator=(const CallOptions& other) {
  if (this != &other) *this = CallOptions(other);
  return *this;
}

CallOptions::Rare& CallOptions::MutableRare() {
  if (rare_ == nullptr) rare_ = std::make_unique<Rare>();
  return *rare_;
}

CallOptions& CallOptions::set_cancellation(std::stop_token token) & {
  MutableRare().cancellation = std::move(token);
  return *this;
}

CallOptions& CallOptions::set_reply_placement(Placement placement) & {
  MutableRare().reply_placement = std::move(placement);
  return *this;
}

CallOptions& CallOptions::add_metadata(absl::string_view key, absl::string_view value) & {
  MutableRare().metadata.Add(key, value);
  return *this;
}

CallOptions CallOptions::FromContext(const ServerContext& context) {
  return CallOptions().set_deadline(context.deadline()).set_cancellation(context.cancellation());
}

// ---- metadata

void Metadata::Add(absl::string_view key, absl::string_view value) {
  pairs_.emplace_back(std::string(key), std::string(value));
}

std::optional<absl::string_view> Metadata::Get(absl::string_view key) const {
  for (const Pair& pair : pairs_) {
    if (pair.first == key) return pair.second;
  }
  return std::nullopt;
}

std::vector<absl::string_view> Metadata::GetAll(absl::string_view key) const {
  std::vector<absl::string_view> values;
  for (const Pair& pair : pairs_) {
    if (pair.first == key) values.push_back(pair.second);
  }
  return values;
}

absl::Status Metadata::Validate() const {
  for (const auto& [key, value] : pairs_) {
    if (key.empty()) return absl::InvalidArgumentError("a metadata key is empty");
    if (absl::StartsWith(key, "verbena-")) {
      return absl::InvalidArgumentError(
          absl::StrCat("metadata key \"", key, "\": the prefix verbena- is reserved"));
    }
    for (const char c : key) {
      if (absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-' || c == '_' || c == '.')
        continue;
      return absl::InvalidArgumentError(
          absl::StrCat("metadata key \"", key,
                       "\": only lower case letters, digits, '-', '_' and '.' are allowed"));
    }
    if (absl::EndsWith(key, "-bin")) continue;
    for (const char c : value) {
      if (c >= 0x20 && c <= 0x7e) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("the value of metadata key \"", key,
                       "\" is not printable ASCII: give the key the suffix -bin"));
    }
  }
  return absl::OkStatus();
}

}  // namespace verbena
