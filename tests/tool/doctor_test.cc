// What the doctor prints, and what the program `verbena` does.
#include "rpc/tool/doctor.h"

#include <sys/wait.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/catch.h"
#include "tests/tool/machines.h"

namespace verbena::tool {
namespace {

using Catch::ContainsSubstring;
using Json = nlohmann::json;

struct Ran {
  int code = -1;
  std::string output;
};

Ran Run(const std::string& arguments, const std::string& environment = "") {
  Ran ran;
  FILE* pipe = popen((environment + " " + VERBENA_TOOL + " " + arguments).c_str(), "r");
  REQUIRE(pipe != nullptr);
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) ran.output.append(buffer, n);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) ran.code = WEXITSTATUS(status);
  return ran;
}

TEST_CASE("the text names devices, ports, GIDs, the choice and each finding with its cure",
          "[tool]") {
  MachineFacts facts = NicMachine();
  fabric::verbs::PortTrial& trial = facts.verbs.devices[1].ports[0].trial;
  trial.read = trial.window = false;
  trial.error = "transport retries";
  const std::string text = DoctorText(facts, Examine(facts));
  for (const char* part : {"NUMA node 1: 32 CPUs, 256 GiB, distances 21 10",
                           "mlx5_0, firmware 28.39.1002",
                           "NUMA node 0",
                           "IOMMU identity",
                           "shared receive queues 8388608 of 32767",
                           "windows 2B",
                           "dma-buf yes",
                           "READ depth 16 out 16 in",
                           "inline 512 B",
                           "port 1: usable",
                           "MTU 4096",
                           "400 Gb/s",
                           "GID 3 (::ffff:10.0.0.1, RoCE v2, eth0)",
                           "SEND works, READ works; window works, its bounds hold",
                           "SEND works, READ FAILS: transport retries",
                           "reactors of NUMA node 1 use mlx5_1:1 before",
                           "shm: works",
                           "locked memory: limit unlimited",
                           "huge pages",
                           "nvidia_peermem: not loaded",
                           "IOMMU: dmar0 dmar1, 120 groups identity; kernel command line: iommu=pt",
                           "PROBLEM verbs: mlx5_1:1",
                           "    compare: ibv_rc_pingpong"}) {
    CHECK_THAT(text, ContainsSubstring(part));
  }
  CHECK_THAT(text, !ContainsSubstring("No problem."));
  facts = NicMachine();
  CHECK_THAT(DoctorText(facts, Examine(facts)), ContainsSubstring("No problem."));
}

TEST_CASE("settings are told, set or not, with RDMA or without", "[tool]") {
  MachineFacts facts = PlainMachine();
  facts.verbs.settings[1] = {"VERBENA_VERBS_SRQ", "o\nff", "it makes no sense"};
  const std::string text = DoctorText(facts, Examine(facts));
  CHECK_THAT(text, ContainsSubstring("  VERBENA_VERBS_SRQ=o\\nff (see below)\n"));
  CHECK_THAT(text, ContainsSubstring("  not set: VERBENA_VERBS_DEVICE\n"));
  CHECK_THAT(text, ContainsSubstring("PROBLEM verbs: it makes no sense, and verbs is not used\n"
                                     "    unset VERBENA_VERBS_SRQ\n"));
  const Json settings = Json::parse(DoctorJson(facts, {}))["verbs"]["settings"];
  REQUIRE(settings.size() == 2);
  CHECK(settings[0]["name"] == "VERBENA_VERBS_DEVICE");
  CHECK(settings[0]["value"].is_null());
  CHECK(settings[0]["problem"] == "");
  CHECK(settings[1]["value"] == "o\nff");
  CHECK(settings[1]["problem"] == "it makes no sense");
}

TEST_CASE("verbena doctor reads the environment, whatever the machine", "[tool]") {
  const Ran ran = Run("doctor --json", "VERBENA_VERBS_REVOCATION=word VERBENA_VERBS_DEVICE=typo9");
  const Json json = Json::parse(ran.output);
  CHECK(ran.code == 1);
  const std::string findings = json["findings"].dump();
  CHECK_THAT(findings, ContainsSubstring("VERBENA_VERBS_REVOCATION=word is not window, lease-mr "
                                         "or lane, and verbs is not used"));
  CHECK_THAT(findings, ContainsSubstring("unset VERBENA_VERBS_REVOCATION"));
  CHECK_THAT(findings, ContainsSubstring("no RDMA port is named typo9; there"));
  CHECK(json["verbs"]["settings"].size() == 11);
  for (const Json& choice : json["verbs"]["choices"]) CHECK(choice["device"] == "");
}

TEST_CASE("the JSON parses, and says what the text says", "[tool]") {
  MachineFacts facts = NicMachine();
  facts.transports[0] = {"shm", false, "a \"quoted\" reason\nin two lines, \xff no UTF-8"};
  const Json json = Json::parse(DoctorJson(facts, Examine(facts)));
  CHECK(json["format"] == 1);
  CHECK(json["ok"] == false);
  REQUIRE(json["findings"].size() == 1);
  CHECK(json["findings"][0]["problem"] == true);
  CHECK(json["findings"][0]["area"] == "shm");
  CHECK_FALSE(json["findings"][0]["cure"].get<std::string>().empty());
  CHECK(json["nodes"][1]["distances"] == Json({21, 10}));
  const Json& device = json["verbs"]["devices"][0];
  CHECK(device["name"] == "mlx5_0");
  CHECK(device["numa_node"] == 0);
  CHECK(device["limits"]["read_depth_responder"] == 16);
  CHECK(device["limits"]["dmabuf"] == true);
  const Json& port = device["ports"][0];
  CHECK(port["usable"] == true);
  CHECK(port["gids"][0]["gid"] == "::ffff:10.0.0.1");
  CHECK(port["gids"][0]["kind"] == "RoCE v2");
  CHECK(port["gids"][0]["chosen"] == true);
  CHECK(port["pkeys"] == Json({0xffff}));
  CHECK(port["loopback"]["read"] == true);
  CHECK(port["loopback"]["bounds_enforced"] == true);
  CHECK(port["counters"]["port_xmit_data"] == UINT64_MAX);
  CHECK(json["verbs"]["choices"][1]["device"] == "mlx5_1");
  CHECK(json["verbs"]["filter"]["pkey"].is_null());
  CHECK(json["transports"][0]["usable"] == false);
  CHECK_THAT(json["transports"][0]["text"].get<std::string>(), ContainsSubstring("\"quoted\""));
  CHECK(json["memory"]["memlock"]["bytes_max"].is_null());
  CHECK(json["memory"]["pools_huge"] == true);
  CHECK(json["gpu"]["nvidia_peermem"] == false);
  CHECK(json["iommu"]["group_modes"]["identity"] == 120);
}

TEST_CASE("each GPU is told with its nearest NIC, and whether that reaches it", "[tool]") {
  MachineFacts facts = GpuMachine();
  std::string text = DoctorText(facts, {});
  for (const char* part :
       {"cuda:0, 0000:1b:00.0, dma-buf yes, what NICs write is seen in order",
        "BAR 1 256 GiB, registered with NICs at most 192 GiB; nearest NIC mlx5_0 (behind one "
        "switch)",
        "READ of a pattern into its memory and out of it: over mlx5_0 works"}) {
    CHECK_THAT(text, ContainsSubstring(part));
  }
  Json gpu = Json::parse(DoctorJson(facts, {}))["gpu"]["devices"][0];
  CHECK(gpu["name"] == "cuda:0");
  CHECK(gpu["bar1_bytes"] == uint64_t{256} << 30);
  CHECK(gpu["nearest_nic"] == "mlx5_0");
  CHECK(gpu["loopback"]["read"] == true);
  facts.gpu.devices[0] = {};
  facts.gpu.devices[0].name = "cuda:0";
  facts.gpu.devices[0].trial.text = "there is no RDMA device";
  text = DoctorText(facts, {});
  CHECK_THAT(text, ContainsSubstring("not tried: there is no RDMA device"));
  CHECK_THAT(text, ContainsSubstring("nearest NIC unknown"));
  gpu = Json::parse(DoctorJson(facts, {}))["gpu"]["devices"][0];
  CHECK(gpu["bar1_bytes"].is_null());
  CHECK(gpu["nearest_nic"].is_null());
  CHECK(gpu["loopback"]["read"].is_null());
  facts = NicMachine();
  facts.gpu.none = "cuda: no driver: libcuda.so.1";
  CHECK_THAT(DoctorText(facts, {}),
             ContainsSubstring("GPUs: none (cuda: no driver: libcuda.so.1)"));
}

TEST_CASE("what is unknown is null in the JSON", "[tool]") {
  MachineFacts facts = NicMachine();
  facts.verbs.devices[0].numa_node = -1;
  facts.verbs.devices[0].limits.dmabuf_unknown = true;
  facts.memory.pools_huge.reset();
  facts.verbs.devices[0].ports[0].trial = {};
  const Json json = Json::parse(DoctorJson(facts, {}));
  CHECK(json["ok"] == true);
  CHECK(json["verbs"]["devices"][0]["numa_node"].is_null());
  CHECK(json["verbs"]["devices"][0]["limits"]["dmabuf"].is_null());
  CHECK(json["verbs"]["devices"][0]["ports"][0]["loopback"].is_null());
  CHECK(json["memory"]["pools_huge"].is_null());
}

TEST_CASE("verbena doctor runs on this machine, whatever it is", "[tool]") {
  const Ran json = Run("doctor --json");
  const Json parsed = Json::parse(json.output);
  CHECK(json.code == (parsed["ok"] == true ? 0 : 1));
  CHECK(parsed["nodes"].size() >= 1);
  for (const Json& transport : parsed["transports"]) {
    INFO(transport.dump());
    CHECK(transport["usable"] == true);
  }
  const Ran text = Run("doctor");
  CHECK(text.code == json.code);
  CHECK_THAT(text.output, ContainsSubstring("NUMA node"));
}

TEST_CASE("verbena says how it is called", "[tool]") {
  CHECK(Run("--help").code == 0);
  CHECK_THAT(Run("--help").output, ContainsSubstring("doctor [--json]"));
  CHECK_THAT(Run("--version").output, ContainsSubstring("verbena "));
  CHECK(Run("2>/dev/null").code == 2);
  CHECK(Run("nonsense 2>/dev/null").code == 2);
  CHECK(Run("doctor --nonsense 2>/dev/null").code == 2);
  CHECK(Run("doctor --help").code == 0);
}

}  // namespace
}  // namespace verbena::tool
