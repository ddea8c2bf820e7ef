// What the environment demands of verbs, and that no demand is passed over in silence.
#include <array>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "rpc/base/log.h"
#include "rpc/fabric/available.h"
#include "rpc/fabric/verbs/settings.h"
#include "tests/catch.h"
#include "tests/contract/setup_thread.h"

namespace verbena::fabric::verbs {
namespace {

using Catch::ContainsSubstring;

class With {
 public:
  explicit With(std::initializer_list<std::pair<const char*, const char*>> variables) {
    for (const auto& [name, value] : variables) {
      names_.emplace_back(name);
      setenv(name, value, 1);
    }
  }
  ~With() {
    for (const std::string& name : names_) unsetenv(name.c_str());
  }

 private:
  std::vector<std::string> names_;
};

TEST_CASE("the environment says what verbs is to do", "[verbs][settings]") {
  const With with({{"VERBENA_VERBS_DEVICE", "mlx5_0:1"},
                   {"VERBENA_VERBS_GID_INDEX", "3"},
                   {"VERBENA_VERBS_PKEY", "0x8001"},
                   {"VERBENA_VERBS_REVOCATION", "lease-mr"},
                   {"VERBENA_VERBS_TRAFFIC_CLASS", "255"},
                   {"VERBENA_VERBS_SERVICE_LEVEL", "15"},
                   {"VERBENA_VERBS_SRQ", "0"},
                   {"VERBENA_VERBS_BATCH", "1"},
                   {"VERBENA_VERBS_GPUDIRECT", "0"},
                   {"VERBENA_VERBS_GPUDIRECT_BYTES_MAX", "0x40000000"},
                   {"VERBENA_VERBS_COPIED_BYTES_MAX", "0"}});
  const Settings settings = Settings::FromEnvironment();
  CHECK(settings.Check().ok());
  CHECK(settings.filter.device == "mlx5_0:1");
  CHECK(settings.filter.gid_index == 3);
  CHECK(settings.filter.pkey == 0x8001);
  CHECK(settings.revocation == Revocation::kLeaseMr);
  CHECK(settings.traffic_class == 255);
  CHECK(settings.service_level == 15);
  CHECK_FALSE(settings.srq);
  CHECK(settings.batch);
  CHECK_FALSE(settings.gpu_direct);
  CHECK(settings.gpu_direct_bytes_max == uint64_t{1} << 30);
  CHECK(settings.copied_bytes_max == 0);
  for (const Setting& setting : settings.all) {
    INFO(setting.name);
    CHECK_FALSE(setting.value.empty());
    CHECK(setting.problem.empty());
  }
}

TEST_CASE("what is not set, or empty, demands nothing", "[verbs][settings]") {
  const With with({{"VERBENA_VERBS_DEVICE", ""}, {"VERBENA_VERBS_SRQ", ""}});
  const Settings settings = Settings::FromEnvironment();
  CHECK(settings.Check().ok());
  CHECK(settings.filter.device.empty());
  CHECK(settings.filter.gid_index == -1);
  CHECK(settings.filter.pkey == -1);
  CHECK_FALSE(settings.revocation.has_value());
  CHECK(settings.srq);
  CHECK(settings.batch);
  CHECK(settings.gpu_direct);
  CHECK_FALSE(settings.copied_bytes_max.has_value());
  CHECK(settings.all.size() == 11);
}

TEST_CASE("each value that makes no sense is named, with what it may be", "[verbs][settings]") {
  for (const auto& [name, value, may_be] :
       std::vector<std::array<const char*, 3>>{{"DEVICE", " , ", "a list of devices or ports"},
                                               {"GID_INDEX", "first", "a number from 0 to 255"},
                                               {"GID_INDEX", "-1", "a number from 0 to 255"},
                                               {"PKEY", "0x18001", "a number from 0 to 0xffff"},
                                               {"REVOCATION", "word", "window, lease-mr or lane"},
                                               {"TRAFFIC_CLASS", "256", "a number from 0 to 255"},
                                               {"SERVICE_LEVEL", "16", "a number from 0 to 15"},
                                               {"SRQ", "off", "0 or 1"},
                                               {"BATCH", "no", "0 or 1"},
                                               {"GPUDIRECT", "false", "0 or 1"},
                                               {"GPUDIRECT_BYTES_MAX", "1G", "a number of bytes"},
                                               {"COPIED_BYTES_MAX", "-1", "a number of bytes"}}) {
    const std::string variable = std::string("VERBENA_VERBS_") + name;
    const With with({{variable.c_str(), value}, {"VERBENA_VERBS_PKEY", "x\n"}});
    const absl::Status sense = Settings::FromEnvironment().Check();
    INFO(sense);
    CHECK(absl::IsInvalidArgument(sense));
    CHECK_THAT(std::string(sense.message()), ContainsSubstring("VERBENA_VERBS_PKEY=x\\n is not"));
    if (variable == "VERBENA_VERBS_PKEY") continue;
    CHECK_THAT(std::string(sense.message()),
               ContainsSubstring(variable + "=" + value + " is not " + may_be));
  }
}

TEST_CASE("a name that is none of ours is told, and stops nothing", "[verbs][settings]") {
  const With with({{"VERBENA_VERBS_DEVCE", "mlx5_0"}});
  const Settings settings = Settings::FromEnvironment();
  CHECK(settings.Check().ok());
  REQUIRE(settings.all.size() == 12);
  CHECK_FALSE(settings.all.back().known);
  CHECK(settings.all.back().problem ==
        "VERBENA_VERBS_DEVCE=mlx5_0: this version knows no such setting");
}

// Of two reactors' fabrics: what is logged, and what is kept for the status of channels.
std::pair<int, std::string> WhyNoVerbs(const std::string& part) {
  std::vector<std::string> lines;
  SetLogSink([&lines](LogLevel level, absl::string_view line) {
    if (level <= LogLevel::kWarning) lines.emplace_back(line);
  });
  contract::SetupThread setup;
  FabricOptions options;
  options.host = &memory::HostDevice();
  options.post_setup = [&setup](contract::SetupThread::Job job) { setup.Post(std::move(job)); };
  for (int reactor = 0; reactor < 2; ++reactor) {
    for (const auto& fabric : MakeFabrics(options)) CHECK(fabric->traits().name != "verbs");
  }
  SetLogSink({});
  int said = 0;
  for (const std::string& line : lines) said += absl::StrContains(line, part) ? 1 : 0;
  return {said, WhyMissing("verbs")};
}

TEST_CASE("a demand that cannot be met is logged once, and in the status", "[verbs][settings]") {
  {
    const With with({{"VERBENA_VERBS_DEVICE", "typo9"}});
    const auto [said, why] = WhyNoVerbs("no RDMA port is named typo9; there");
    CHECK(said == 1);
    CHECK_THAT(why, ContainsSubstring("VERBENA_VERBS_DEVICE=typo9: no RDMA port is named typo9"));
  }
  const With with({{"VERBENA_VERBS_TRAFFIC_CLASS", "high"}});
  const auto [said, why] = WhyNoVerbs("VERBENA_VERBS_TRAFFIC_CLASS=high is not a number");
  CHECK(said == 1);
  CHECK(why == "VERBENA_VERBS_TRAFFIC_CLASS=high is not a number from 0 to 255");
}

}  // namespace
}  // namespace verbena::fabric::verbs
