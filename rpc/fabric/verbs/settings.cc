#include "rpc/fabric/verbs/settings.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace verbena::fabric::verbs {
namespace {

constexpr absl::string_view kPrefix = "VERBENA_VERBS_";

// Decimal or 0x...
template <class Number>
bool TakeNumber(absl::string_view text, uint64_t max, Number& into) {
  uint64_t number = 0;
  const bool parsed = absl::ConsumePrefix(&text, "0x") || absl::ConsumePrefix(&text, "0X")
                          ? absl::SimpleHexAtoi(text, &number)
                          : absl::SimpleAtoi(text, &number);
  if (!parsed || number > max) return false;
  into = static_cast<Number>(number);
  return true;
}

template <class Number>
bool TakeBytes(absl::string_view text, Number& into) {
  return TakeNumber(text, std::numeric_limits<uint64_t>::max(), into);
}

bool TakeSwitch(absl::string_view text, bool& into) {
  into = text != "0";
  return text == "0" || text == "1";
}

bool TakeRevocation(absl::string_view text, std::optional<Revocation>& into) {
  if (text == "window") into = Revocation::kWindow;
  if (text == "lease-mr") into = Revocation::kLeaseMr;
  if (text == "lane") into = Revocation::kLane;
  return into.has_value();
}

// make.h says what each does.
struct Known {
  absl::string_view name;  // behind the prefix
  absl::string_view may_be;
  bool (*take)(absl::string_view text, Settings& into);  // false: it makes no sense
};
constexpr absl::string_view kSwitch = "0 or 1";
constexpr absl::string_view kByte = "a number from 0 to 255";
constexpr absl::string_view kBytes = "a number of bytes, such as 2147483648";
constexpr Known kKnown[] = {
    {"DEVICE", "a list of devices or ports, such as mlx5_0,mlx5_1:1",
     [](absl::string_view text, Settings& into) {
       into.filter.device = std::string(text);
       return text.find_first_not_of(", \t\n") != absl::string_view::npos;
     }},
    {"GID_INDEX", kByte,
     [](absl::string_view text, Settings& into) {
       return TakeNumber(text, 255, into.filter.gid_index);
     }},
    {"PKEY", "a number from 0 to 0xffff",
     [](absl::string_view text, Settings& into) {
       return TakeNumber(text, 0xffff, into.filter.pkey);
     }},
    {"REVOCATION", "window, lease-mr or lane",
     [](absl::string_view text, Settings& into) { return TakeRevocation(text, into.revocation); }},
    {"TRAFFIC_CLASS", kByte,
     [](absl::string_view text, Settings& into) {
       return TakeNumber(text, 255, into.traffic_class);
     }},
    {"SERVICE_LEVEL", "a number from 0 to 15",
     [](absl::string_view text, Settings& into) {
       return TakeNumber(text, 15, into.service_level);
     }},
    {"SRQ", kSwitch,
     [](absl::string_view text, Settings& into) { return TakeSwitch(text, into.srq); }},
    {"BATCH", kSwitch,
     [](absl::string_view text, Settings& into) { return TakeSwitch(text, into.batch); }},
    {"GPUDIRECT", kSwitch,
     [](absl::string_view text, Settings& into) { return TakeSwitch(text, into.gpu_direct); }},
    {"GPUDIRECT_BYTES_MAX", kBytes,
     [](absl::string_view text, Settings& into) {
       return TakeBytes(text, into.gpu_direct_bytes_max);
     }},
    {"COPIED_BYTES_MAX", kBytes,
     [](absl::string_view text, Settings& into) {
       return TakeBytes(text, into.copied_bytes_max.emplace());
     }},
};

std::string Said(const Setting& setting) {
  return absl::StrCat(setting.name, "=", absl::CHexEscape(setting.value));
}

void AddUnknown(std::vector<Setting>& all) {
  const size_t known = all.size();
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    const absl::string_view line = *at;
    const size_t end = line.find('=');
    if (end == absl::string_view::npos || !absl::StartsWith(line, kPrefix)) continue;
    Setting setting{std::string(line.substr(0, end)), std::string(line.substr(end + 1)), "", false};
    const bool ours =
        std::any_of(all.begin(), all.begin() + static_cast<ptrdiff_t>(known),
                    [&setting](const Setting& other) { return other.name == setting.name; });
    if (ours) continue;
    setting.problem = absl::StrCat(Said(setting), ": this version knows no such setting");
    all.push_back(std::move(setting));
  }
}

}  // namespace

Settings Settings::FromEnvironment() {
  Settings settings;
  for (const Known& known : kKnown) {
    Setting setting;
    setting.name = absl::StrCat(kPrefix, known.name);
    const char* const value = std::getenv(setting.name.c_str());
    if (value != nullptr) setting.value = value;
    if (!setting.value.empty() && !known.take(setting.value, settings)) {
      setting.problem = absl::StrCat(Said(setting), " is not ", known.may_be);
    }
    settings.all.push_back(std::move(setting));
  }
  AddUnknown(settings.all);
  return settings;
}

absl::Status Settings::Check() const {
  std::string problems;
  for (const Setting& setting : all) {
    if (!setting.known || setting.problem.empty()) continue;
    absl::StrAppend(&problems, problems.empty() ? "" : "; ", setting.problem);
  }
  return problems.empty() ? absl::OkStatus() : absl::InvalidArgumentError(problems);
}

}  // namespace verbena::fabric::verbs
