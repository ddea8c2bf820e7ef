// verbena doctor on RDMA devices that this machine really has. Skipped, with the reason, where it
// has none; guests of tests/guest/run have.
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/catch.h"

namespace verbena::tool {
namespace {

using Catch::ContainsSubstring;
using Json = nlohmann::json;

struct Ran {
  int code = -1;
  Json json;
};

Ran Doctor(const std::string& environment = "") {
  Ran ran;
  std::string output;
  FILE* pipe = popen((environment + " " + VERBENA_TOOL + " doctor --json").c_str(), "r");
  REQUIRE(pipe != nullptr);
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) ran.code = WEXITSTATUS(status);
  INFO(output);
  ran.json = Json::parse(output);
  return ran;
}

bool InGuest() { return std::getenv("GUEST_INDEX") != nullptr; }

bool Skipped(const Ran& ran) {
  if (!ran.json["verbs"]["devices"].empty()) return false;
  INFO(ran.json["findings"].dump());
  if (InGuest()) FAIL("no device in a guest");
  WARN("verbs skipped: " << ran.json["findings"].dump());
  return true;
}

TEST_CASE("the doctor finds devices, and patterns come back over their ports", "[tool][verbs]") {
  const Ran ran = Doctor();
  if (Skipped(ran)) return;
  int tried = 0;
  for (const Json& device : ran.json["verbs"]["devices"]) {
    for (const Json& port : device["ports"]) {
      INFO(port.dump(2));
      if (port["usable"] == false) continue;
      ++tried;
      CHECK(port["loopback"]["send"] == true);
      CHECK(port["loopback"]["read"] == true);
    }
  }
  CHECK(tried > 0);
  CHECK(ran.json["verbs"]["choices"].size() == ran.json["nodes"].size());
  if (!InGuest()) return;
  INFO(ran.json["findings"].dump(2));
  CHECK(ran.code == 0);
  const Json& device = ran.json["verbs"]["devices"][0];
  CHECK(device["name"] == "rxe0");
  CHECK(device["soft"] == true);
  // soft-RoCE has windows, and does not enforce their bounds.
  CHECK(device["ports"][0]["loopback"]["window"] == true);
  CHECK(device["ports"][0]["loopback"]["bounds_enforced"] == false);
  CHECK(device["ports"][0]["counters"]["sent_pkts"].is_number());
  CHECK(device["ports"][0]["rnr"].is_number());
  CHECK(device["ports"][0]["retries"].is_number());
}

TEST_CASE("what the user demands and the machine has not is a problem", "[tool][verbs]") {
  if (Skipped(Doctor())) return;
  for (const char* demand :
       {"VERBENA_VERBS_DEVICE=none", "VERBENA_VERBS_GID_INDEX=200", "VERBENA_VERBS_PKEY=0x8123",
        "VERBENA_VERBS_REVOCATION=word", "VERBENA_VERBS_SERVICE_LEVEL=16"}) {
    const Ran ran = Doctor(demand);
    INFO(demand << "\n" << ran.json["findings"].dump(2));
    CHECK(ran.code == 1);
    for (const Json& choice : ran.json["verbs"]["choices"]) CHECK(choice["device"] == "");
    const std::string name = std::string(demand).substr(0, std::string(demand).find('='));
    CHECK(ran.json["findings"][0]["cure"] == "unset " + name);
  }
}

TEST_CASE("what keeps a device from a process is a problem with its cure", "[tool][verbs]") {
  if (!InGuest()) {
    WARN("verbs skipped: takes devices away, so only in a guest");
    return;
  }
  const auto told = [](const Ran& ran) {
    INFO(ran.json["findings"].dump(2));
    CHECK(ran.code == 1);
    return ran.json["findings"][0]["text"].get<std::string>() + " | " +
           ran.json["findings"][0]["cure"].get<std::string>();
  };
  const std::string nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all";
  // Locked memory binds whoever may not lock.
  CHECK_THAT(told(Doctor(nobody)),
             ContainsSubstring("RLIMIT_MEMLOCK") && ContainsSubstring("| ulimit -l unlimited"));
  REQUIRE(std::system("chmod 000 /dev/infiniband/uverbs*") == 0);
  CHECK_THAT(told(Doctor(nobody)), ContainsSubstring("uverbs0: Permission denied | chmod 0666"));
  REQUIRE(std::system("mkdir -p /run/away && mv /dev/infiniband/uverbs* /run/away") == 0);
  CHECK_THAT(told(Doctor()), ContainsSubstring("uverbs0: No such file or directory"));
  REQUIRE(std::system("mv /run/away/* /dev/infiniband && chmod 666 /dev/infiniband/*") == 0);
  REQUIRE(std::system("echo 1 > /proc/sys/net/ipv6/conf/eth0/keep_addr_on_down && "
                      "ip link set eth0 down") == 0);
  CHECK_THAT(told(Doctor("VERBENA_VERBS_DEVICE=rxe0")),
             ContainsSubstring("rxe0:1: the link is not up") &&
                 ContainsSubstring("| ip link set eth0 up"));
  REQUIRE(std::system("ip link set eth0 up") == 0);
}

}  // namespace
}  // namespace verbena::tool
