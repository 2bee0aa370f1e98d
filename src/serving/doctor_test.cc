#include "serving/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <memory>

#include "http/test_socket.h"
#include "serving/testing/fake_instance.h"

namespace baton::serving {
namespace {

using testing::FakeInstance;
using Verdict = Check::Verdict;

InstanceInfo healthy(const std::string& engine_id, const std::string& role) {
  InstanceInfo info;
  info.ready = true;
  info.version = "1";
  info.engine_id = engine_id;
  info.incarnation = 7;
  info.role = role;
  info.mode = "push";
  info.handover_host = "127.0.0.1";
  info.handover_port = 5600;
  info.models = {"tiny"};
  info.weights = "f00d";
  info.kernel_family = "avx2";
  info.block_size = 16;
  info.max_model_len = 1024;
  info.blocks_free = info.blocks_total = 256;
  info.kv = {"bfloat16", 4, 8, 64};
  info.protocol = {1, 2};
  info.limits = {20, 65536, -1, 1};
  info.fabric = "shm";
  info.security = "none";
  info.boot_id = "boot-1";
  return info;
}

struct Pair {
  InstanceInfo p = healthy("p0", "kv_producer");
  InstanceInfo d = healthy("d0", "kv_consumer");

  std::vector<Check> checks() const {
    std::vector<Check> all = check_instance(p, true);
    for (Check& check : check_instance(d, false)) all.push_back(std::move(check));
    for (Check& check : check_pair(p, d)) all.push_back(std::move(check));
    return all;
  }
};

TEST(Doctor, AHealthyPairPassesEveryCheck) {
  const std::vector<Check> checks = Pair().checks();
  for (const Check& check : checks) {
    EXPECT_EQ(check.verdict, Verdict::kOk) << check.name << ": " << check.found;
    EXPECT_EQ(check.remedy, "") << check.name;
  }
  EXPECT_TRUE(all_well(checks));
  EXPECT_GE(checks.size(), 20U);
}

// Each fault is found by its check, names the values, says what to change, and touches no other.
struct Fault {
  const char* check;
  Verdict verdict;
  const char* words;
  void (*make)(Pair&);
};

class DoctorFaultTest : public ::testing::TestWithParam<Fault> {};

TEST_P(DoctorFaultTest, IsFoundWithItsRemedy) {
  const Fault& fault = GetParam();
  Pair pair;
  fault.make(pair);
  bool found = false;
  for (const Check& check : pair.checks()) {
    if (check.name != fault.check) {
      EXPECT_EQ(check.verdict, Verdict::kOk) << check.name << ": " << check.found;
      continue;
    }
    found = true;
    EXPECT_EQ(check.verdict, fault.verdict);
    EXPECT_THAT(check.found, ::testing::HasSubstr(fault.words));
    EXPECT_NE(check.remedy, "");
  }
  EXPECT_TRUE(found) << "no check " << fault.check;
  EXPECT_EQ(all_well(pair.checks()), fault.verdict != Verdict::kFail);
}

const Fault kFaults[] = {
    {"prefill ready", Verdict::kFail, "loading", [](Pair& x) { x.p.ready = false; }},
    {"prefill role", Verdict::kFail, "kv_consumer", [](Pair& x) { x.p.role = "kv_consumer"; }},
    {"decode role", Verdict::kFail, "none", [](Pair& x) { x.d.role = ""; }},
    {"decode room", Verdict::kWarning, "3 in quarantine",
     [](Pair& x) { x.d.blocks_quarantined = 3; }},
    {"prefill room", Verdict::kWarning, "0 of 256", [](Pair& x) { x.p.blocks_free = 0; }},
    {"decode room", Verdict::kWarning, "of 8 blocks",
     [](Pair& x) { x.d.blocks_total = x.d.blocks_free = 8; }},
    {"decode descriptors", Verdict::kWarning, "900 of 1024",
     [](Pair& x) { x.d.limits.open_files = 900, x.d.limits.open_files_max = 1024; }},
    {"prefill descriptors", Verdict::kWarning, "of 256",
     [](Pair& x) { x.p.limits.open_files_max = 256; }},
    {"engine ids", Verdict::kFail, "'p0'", [](Pair& x) { x.d.engine_id = "p0"; }},
    {"protocol", Verdict::kFail, "prefill 1 to 2, decode 3 to 4",
     [](Pair& x) { x.d.protocol = {3, 4}; }},
    {"version", Verdict::kWarning, "prefill 1, decode 2", [](Pair& x) { x.d.version = "2"; }},
    {"model names", Verdict::kFail, "other", [](Pair& x) { x.d.models = {"other"}; }},
    {"weights", Verdict::kFail, "prefill f00d, decode beef", [](Pair& x) { x.d.weights = "beef"; }},
    {"kernels", Verdict::kWarning, "prefill avx2, decode amx",
     [](Pair& x) { x.d.kernel_family = "amx"; }},
    {"block size", Verdict::kFail, "prefill 16, decode 32", [](Pair& x) { x.d.block_size = 32; }},
    {"KV dtype", Verdict::kFail, "float32", [](Pair& x) { x.d.kv.dtype = "float32"; }},
    {"TP size", Verdict::kFail, "prefill 1, decode 8", [](Pair& x) { x.d.tp_size = 8; }},
    {"PP size", Verdict::kFail, "prefill 2, decode 1", [](Pair& x) { x.p.pp_size = 2; }},
    {"layers", Verdict::kFail, "prefill 4, decode 5", [](Pair& x) { x.d.kv.num_layers = 5; }},
    {"KV heads", Verdict::kFail, "decode 2", [](Pair& x) { x.d.kv.num_kv_heads = 2; }},
    {"head size", Verdict::kFail, "decode 128", [](Pair& x) { x.d.kv.head_dim = 128; }},
    {"context", Verdict::kWarning, "decode 512", [](Pair& x) { x.d.max_model_len = 512; }},
    {"mode", Verdict::kFail, "decode pull", [](Pair& x) { x.d.mode = "pull"; }},
    {"fabric", Verdict::kFail, "decode libfabric", [](Pair& x) { x.d.fabric = "libfabric"; }},
    {"provider", Verdict::kFail, "prefill tcp, decode efa",
     [](Pair& x) {
       x.p.fabric = x.d.fabric = "libfabric";
       x.p.fabric_provider = "tcp", x.d.fabric_provider = "efa";
     }},
    {"security", Verdict::kFail, "prefill none, decode psk", [](Pair& x) { x.d.security = "psk"; }},
    {"prefill locked memory", Verdict::kWarning, "64 KiB",
     [](Pair& x) {
       x.p.fabric = x.d.fabric = "libfabric";
       x.p.fabric_provider = x.d.fabric_provider = "efa";
       x.p.limits.locked_bytes_max = 65536;
     }},
    {"side channel address", Verdict::kFail, "127.0.0.1 only",
     [](Pair& x) {
       x.p.fabric = x.d.fabric = "libfabric";
       x.p.security = x.d.security = "tls";
       x.d.boot_id = "boot-2";
     }},
    {"hosts", Verdict::kFail, "shm",
     [](Pair& x) {
       x.p.handover_host = "10.0.0.1";
       x.p.security = x.d.security = "tls";
       x.d.boot_id = "boot-2";
     }},
    {"exposure", Verdict::kWarning, "plain",
     [](Pair& x) {
       x.p.fabric = x.d.fabric = "libfabric";
       x.p.handover_host = "10.0.0.1";
       x.d.boot_id = "boot-2";
     }},
};
INSTANTIATE_TEST_SUITE_P(All, DoctorFaultTest, ::testing::ValuesIn(kFaults));

const Check* named(const std::vector<Check>& checks, std::string_view name) {
  for (const Check& check : checks) {
    if (check.name == name) return &check;
  }
  return nullptr;
}

TEST(Doctor, NobodyThereIsToldAndNothingHangs) {
  http::TestListener silent;  // takes connections and never answers
  DoctorOptions options;
  options.prefill = "http://127.0.0.1:1";
  options.decode = silent.url();
  options.router = "http://127.0.0.1:1";
  options.timeout = 0.2;
  const std::vector<Check> checks = diagnose(options);
  for (const char* name : {"prefill HTTP", "decode HTTP", "router"}) {
    ASSERT_NE(named(checks, name), nullptr) << name;
    EXPECT_EQ(named(checks, name)->verdict, Verdict::kFail);
    EXPECT_NE(named(checks, name)->remedy, "");
  }
  EXPECT_THAT(named(checks, "decode HTTP")->found, ::testing::HasSubstr("took too long"));
  EXPECT_EQ(named(checks, "side channel"), nullptr) << "nothing to try";
}

TEST(Doctor, TriesTheSideChannel) {
  FakeInstance p("p0", "kv_producer"), d("d0", "kv_consumer");
  http::TestListener silent;
  const auto run = [&](std::uint16_t port) {
    p.change([port](InstanceInfo& info) {
      info = healthy("p0", "kv_producer");
      info.handover_port = port;
      info.boot_id = "elsewhere";
    });
    d.change([](InstanceInfo& info) { info = healthy("d0", "kv_consumer"); });
    DoctorOptions options;
    options.prefill = p.url();
    options.decode = d.url();
    options.timeout = 10;
    return diagnose(options);
  };
  std::vector<Check> checks = run(1);
  ASSERT_NE(named(checks, "side channel"), nullptr);
  EXPECT_EQ(named(checks, "side channel")->verdict, Verdict::kFail);
  EXPECT_THAT(named(checks, "side channel")->found, ::testing::HasSubstr("127.0.0.1:1"));
  EXPECT_THAT(named(checks, "side channel")->remedy, ::testing::HasSubstr("TCP port 1 through"));

  checks = run(silent.port());
  EXPECT_EQ(named(checks, "side channel")->verdict, Verdict::kOk);
  EXPECT_EQ(named(checks, "handshake")->verdict, Verdict::kWarning) << "another host's shm";
}

TEST(Doctor, SaysWhoDoesNotServeTheModelThatClientsAskFor) {
  Pair pair;
  EXPECT_EQ(check_model("tiny", pair.p, pair.d).verdict, Verdict::kOk);
  const Check neither = check_model("tinny", pair.p, pair.d);
  EXPECT_EQ(neither.verdict, Verdict::kFail);
  EXPECT_EQ(neither.found, "tinny is not served by either: prefill tiny, decode tiny");
  EXPECT_THAT(neither.remedy, ::testing::AllOf(::testing::HasSubstr("--served-model-name tinny"),
                                               ::testing::HasSubstr("ask for tiny")));
  pair.p.models.emplace_back("Qwen");
  EXPECT_THAT(check_model("Qwen", pair.p, pair.d).found,
              ::testing::HasSubstr("not served by decode: prefill tiny Qwen, decode tiny"));
  std::swap(pair.p.models, pair.d.models);
  EXPECT_THAT(check_model("Qwen", pair.p, pair.d).found,
              ::testing::HasSubstr("not served by prefill"));
}

TEST(Doctor, ARouterOfOtherInstancesIsFoundByItsModels) {
  Pair pair;
  EXPECT_EQ(check_router_models({"other", "tiny"}, pair.p, pair.d).verdict, Verdict::kOk);
  const Check other = check_router_models({"other"}, pair.p, pair.d);
  EXPECT_EQ(other.verdict, Verdict::kFail);
  EXPECT_EQ(other.found, "router other, and not tiny (prefill tiny, decode tiny)");
  EXPECT_NE(other.remedy, "");
  EXPECT_THAT(check_router_models({}, pair.p, pair.d).found, ::testing::HasSubstr("(none)"));
  pair.d.models = {"other"};  // a pair without a common name is another check's
  EXPECT_EQ(check_router_models({}, pair.p, pair.d).verdict, Verdict::kOk);
}

TEST(Doctor, ARouterOfOtherProcessesIsFoundByTheirIdsWhateverTheModelIsCalled) {
  Pair pair;
  pair.p.incarnation = 0xA1;
  pair.d.incarnation = 0xB1;
  const std::vector<UpstreamEntry> right = {
      {Stage::kPrefill, "http://10.0.0.1:8100", true, "", "p0", 0xA1},
      {Stage::kPrefill, "http://10.0.0.3:8100", true, "", "p1", 0xA2},
      {Stage::kDecode, "http://10.0.0.2:8200", true, "", "d0", 0xB1}};
  const Check all = check_router_upstreams(right, pair.p, pair.d);
  EXPECT_EQ(all.verdict, Verdict::kOk) << all.found;
  const auto spoilt = [&](auto spoil) {
    std::vector<UpstreamEntry> entries = right;
    spoil(entries);
    const Check check = check_router_upstreams(entries, pair.p, pair.d);
    EXPECT_EQ(check.verdict, Verdict::kFail) << check.found;
    EXPECT_THAT(check.remedy, ::testing::HasSubstr("--prefill and --decode"));
    return check.found;
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(spoilt([](auto& e) { e.erase(e.begin()); }),
              HasSubstr("prefill p0 is not among them; the router has prefill http://10.0.0.3"));
  EXPECT_THAT(spoilt([](auto& e) { e[2].stage = Stage::kPrefill; }),
              HasSubstr("decode d0 is not among them"));
  EXPECT_THAT(spoilt([](auto& e) { e[2].incarnation = 0xB2; }),
              HasSubstr("the decode d0 there, http://10.0.0.2:8200, is another process"));
  EXPECT_THAT(spoilt([](auto& e) { e[0].up = false, e[0].reason = "it is silent"; }),
              HasSubstr("prefill http://10.0.0.1:8100 (p0) is not up: it is silent"));
  EXPECT_THAT(spoilt([](auto& e) { e.clear(); }), HasSubstr("the router has none"));
}

// A router that says 503 is told with its own words and what to look at.
TEST(Doctor, ARouterThatIsNotReadyIsToldWithItsReason) {
  FakeInstance p("p0", "kv_producer"), d("d0", "kv_consumer");
  p.change([](InstanceInfo& info) { info = healthy("p0", "kv_producer"); });
  d.change([](InstanceInfo& info) { info = healthy("d0", "kv_consumer"); });
  http::ServerOptions options;
  options.port = 0;
  std::string models = R"({"data":[{"id":"other"}]})";
  int status = 503;
  const auto router = http::Server::start(
      std::move(options),
      [&](const http::Request& request, const std::shared_ptr<http::ResponseWriter>& writer) {
        if (request.path == "/v1/models") return writer->respond(200, "application/json", models);
        writer->respond(status, "application/json",
                        R"({"error":{"message":"no decode instance is ready: its mode is pull"}})");
      });
  ASSERT_TRUE(router);
  DoctorOptions asked;
  asked.prefill = p.url();
  asked.decode = d.url();
  asked.router = "http://127.0.0.1:" + std::to_string((*router)->port());
  asked.timeout = 10;
  std::vector<Check> checks = diagnose(asked);
  ASSERT_NE(named(checks, "router"), nullptr);
  EXPECT_THAT(named(checks, "router")->found, ::testing::HasSubstr("no decode instance is ready"));
  EXPECT_THAT(named(checks, "router")->remedy, ::testing::HasSubstr("--mode"));
  EXPECT_EQ(named(checks, "router's models"), nullptr) << "it lists none while it is not ready";
  status = 200;
  asked.model = "Qwen";
  checks = diagnose(asked);
  ASSERT_NE(named(checks, "router's models"), nullptr);
  EXPECT_EQ(named(checks, "router's models")->verdict, Verdict::kFail);
  ASSERT_NE(named(checks, "router's instances"), nullptr);
  EXPECT_EQ(named(checks, "router's instances")->verdict, Verdict::kWarning) << "it does not say";
  ASSERT_NE(named(checks, "model asked for"), nullptr);
  EXPECT_EQ(named(checks, "model asked for")->verdict, Verdict::kFail);
  (*router)->stop(Duration::zero());
}

// An instance says that its health is good and lists the models: it must not pass for a router.
TEST(Doctor, AnInstanceInTheRoutersPlaceIsToldByName) {
  FakeInstance p("p0", "kv_producer"), d("d0", "kv_consumer");
  http::ServerOptions options;
  options.port = 0;
  const auto instance = http::Server::start(
      std::move(options),
      [&](const http::Request& request, const std::shared_ptr<http::ResponseWriter>& writer) {
        if (request.path == "/health") return writer->respond(200, "application/json", "{}");
        if (request.path == "/v1/models") {
          return writer->respond(200, "application/json", R"({"data":[{"id":"tiny"}]})");
        }
        if (request.path != "/baton/instance") return writer->respond(404, "text/plain", "");
        writer->respond(200, "application/json", to_json(healthy("d1", "kv_consumer")));
      });
  ASSERT_TRUE(instance);
  DoctorOptions asked;
  asked.prefill = p.url();
  asked.decode = d.url();
  asked.router = "http://127.0.0.1:" + std::to_string((*instance)->port());
  asked.timeout = 10;
  const std::vector<Check> checks = diagnose(asked);
  ASSERT_NE(named(checks, "router"), nullptr);
  EXPECT_EQ(named(checks, "router")->verdict, Verdict::kFail);
  EXPECT_THAT(named(checks, "router")->found,
              ::testing::HasSubstr("is the instance d1, and no router"));
  (*instance)->stop(Duration::zero());
}

TEST(Doctor, SaysWhenDecodeMayNotConnectToPrefill) {
  FakeInstance p("p0", "kv_producer"), d("d0", "kv_consumer");
  http::TestListener silent;
  const auto checks_with = [&](std::vector<std::string> allowed) {
    p.change([&](InstanceInfo& info) {
      info = healthy("p0", "kv_producer");
      info.handover_port = silent.port();
      info.boot_id = "elsewhere";
    });
    d.change([&](InstanceInfo& info) {
      info = healthy("d0", "kv_consumer");
      info.allowed_peers = allowed;
    });
    DoctorOptions options;
    options.prefill = p.url();
    options.decode = d.url();
    options.timeout = 10;
    options.security.allowed_peers = {"10.9.9.9"};  // D's word counts more
    return diagnose(options);
  };
  std::vector<Check> checks = checks_with({"10.0.0.0/8:5600"});
  ASSERT_NE(named(checks, "allowed peers"), nullptr);
  EXPECT_EQ(named(checks, "allowed peers")->verdict, Verdict::kFail);
  EXPECT_THAT(named(checks, "allowed peers")->found, ::testing::HasSubstr("10.0.0.0/8:5600"));
  EXPECT_EQ(named(checks, "allowed peers")->remedy,
            "add 127.0.0.1:" + std::to_string(silent.port()) + " to decode's --kv-allowed-peers");
  EXPECT_EQ(named(checks, "handshake"), nullptr) << "it would be refused for the same reason";
  checks = checks_with({"127.0.0.0/8"});
  ASSERT_NE(named(checks, "allowed peers"), nullptr);
  EXPECT_EQ(named(checks, "allowed peers")->verdict, Verdict::kOk);
  checks = checks_with({});  // this host, where nothing is listed
  EXPECT_EQ(named(checks, "allowed peers")->verdict, Verdict::kOk);
}

// What a server claims costs no memory, whatever the product of its numbers wraps around to.
TEST(Doctor, AClaimedGeometryIsBounded) {
  http::TestListener silent;
  InstanceInfo p = healthy("p0", "kv_producer");
  p.handover_port = silent.port();
  const auto handshake_with = [&](std::uint64_t layers, std::uint64_t heads, std::uint64_t dim,
                                  std::uint32_t block) {
    InstanceInfo d = healthy("d0", "kv_consumer");
    d.kv = {"bfloat16", layers, heads, dim};
    d.block_size = block;
    const std::vector<Check> checks =
        probe_side_channel(p, "http://127.0.0.1:1", d, {}, std::chrono::seconds(5));
    const Check* found = named(checks, "handshake");
    return found == nullptr ? std::string("none") : found->found;
  };
  EXPECT_THAT(handshake_with(65536, 65536, 65536, 65536), ::testing::HasSubstr("more than 1 GiB"));
  EXPECT_THAT(handshake_with(1ULL << 32, 1ULL << 32, 1, 16),
              ::testing::HasSubstr("more than 1 GiB"));
  EXPECT_THAT(handshake_with(128, 1024, 1024, 2), ::testing::HasSubstr("more than 1 GiB"));
  EXPECT_THAT(handshake_with(1 << 27, 1, 1, 1), ::testing::HasSubstr("4,096 layers"));
  EXPECT_THAT(handshake_with(4, 0, 64, 16), ::testing::HasSubstr("0 KV heads"));
  const auto with_layout = [&](std::uint64_t regions, std::uint64_t token_bytes) {
    InstanceInfo d = healthy("d0", "kv_consumer");
    d.kv.regions_per_layer = regions;
    d.kv.region_token_bytes = token_bytes;
    const std::vector<Check> checks =
        probe_side_channel(p, "http://127.0.0.1:1", d, {}, std::chrono::seconds(5));
    const Check* found = named(checks, "handshake");
    return found == nullptr ? std::string("none") : found->found;
  };
  EXPECT_THAT(with_layout(1ULL << 40, 8), ::testing::HasSubstr("more than 1 GiB"));
  EXPECT_THAT(with_layout(2, 1ULL << 40), ::testing::HasSubstr("more than 1 GiB"));
  EXPECT_THAT(with_layout(2, 0), ::testing::HasSubstr("2 regions a layer x 0 bytes"));
}

// A resolver cannot be told to stop: the doctor goes on without it.
TEST(Doctor, ANameThatIsNotResolvedInTimeIsAFinding) {
  InstanceInfo p = healthy("p0", "kv_producer");
  p.handover_host = "p0.example";
  const auto let_go = std::make_shared<std::latch>(1);
  const http::Lookup stuck = [let_go](const std::string&) -> Result<http::Addresses> {
    let_go->wait();
    return http::Addresses{"127.0.0.1"};
  };
  const auto checks = probe_side_channel(p, "http://127.0.0.1:1", healthy("d0", "kv_consumer"), {},
                                         std::chrono::milliseconds(20), stuck);
  let_go->count_down();
  ASSERT_NE(named(checks, "side channel"), nullptr);
  EXPECT_THAT(named(checks, "side channel")->found,
              ::testing::HasSubstr("'p0.example': the resolver has not answered within 20 ms"));
}

TEST(Doctor, ADecodeOfANewerProtocolIsStillTried) {
  http::TestListener silent;
  InstanceInfo p = healthy("p0", "kv_producer");
  p.handover_port = silent.port();
  p.boot_id = "elsewhere";
  InstanceInfo d = healthy("d0", "kv_consumer");
  d.protocol = {2, 70000};
  const auto checks = probe_side_channel(p, "http://127.0.0.1:1", d, {}, std::chrono::seconds(5));
  ASSERT_NE(named(checks, "handshake"), nullptr);
  EXPECT_THAT(named(checks, "handshake")->found, ::testing::HasSubstr("instances' own host"));
}

TEST(Doctor, AnAnswerLargerThanAnInstanceMakesIsRefusedByField) {
  const auto problem = [](void (*edit)(InstanceInfo&)) {
    InstanceInfo info = healthy("d0", "kv_consumer");
    edit(info);
    const auto parsed = parse_instance_info(to_json(info));
    return parsed ? "parsed" : parsed.error().message;
  };
  EXPECT_EQ(problem([](InstanceInfo&) {}), "parsed");
  EXPECT_EQ(problem([](InstanceInfo& x) { x.engine_id.assign(1025, 'x'); }),
            "engine_id has 1025 bytes, at most 1024 are taken");
  EXPECT_EQ(problem([](InstanceInfo& x) { x.boot_id.assign(2000, 'x'); }),
            "boot_id has 2000 bytes, at most 1024 are taken");
  EXPECT_EQ(problem([](InstanceInfo& x) { x.models.assign(257, "m"); }),
            "models has 257 entries, at most 256 are taken");
  EXPECT_EQ(problem([](InstanceInfo& x) { x.allowed_peers.emplace(300, "p"); }),
            "allowed_peers has 300 entries, at most 256 are taken");
  std::string wraps = to_json(healthy("d0", "kv_consumer"));
  wraps.replace(wraps.find("\"block_size\":16"), 15, "\"block_size\":4294967312");
  const auto parsed = parse_instance_info(wraps);
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().message,
            "block_size must be an integer from 0 to 4294967295, and is 4294967312");
}

TEST(InstanceInfo, tells_what_an_experiment_must_know_and_leaves_open_what_nobody_said) {
  InstanceInfo info = healthy("d0", "kv_consumer");
  const auto none = parse_instance_info(to_json(info));
  ASSERT_TRUE(none.has_value());
  EXPECT_EQ(none->pull_loop + none->transfer_style, "");
  EXPECT_FALSE(none->prefix_caching || none->threads || none->emulation);
  EXPECT_EQ(none->build + none->host.name + none->libfabric_version, "");
  info.pull_loop = "engine";
  info.transfer_style = "published";
  info.prefix_caching = false;
  info.threads = 2;
  info.emulation = {"qwen3-32b-tp8-h200", "cached", 32, 1'331'250'000, 1.5, "f00d"};
  info.host = {"host-1", "6.1.0", "some cpu", 192};
  info.build = "58af463c01ab-dirty";
  info.libfabric_version = "2.1";
  const auto all = parse_instance_info(to_json(info));
  ASSERT_TRUE(all.has_value()) << all.error().message;
  EXPECT_EQ(all->pull_loop, "engine");
  EXPECT_EQ(all->transfer_style, "published");
  EXPECT_EQ(all->prefix_caching, false);
  EXPECT_EQ(all->threads, 2U);
  ASSERT_TRUE(all->emulation.has_value());
  EXPECT_EQ(all->emulation->profile, "qwen3-32b-tp8-h200");
  EXPECT_EQ(all->emulation->prefill, "cached");
  EXPECT_EQ(all->emulation->kv_bytes_scale, 32U);
  EXPECT_EQ(all->emulation->link_bytes_per_second, 1'331'250'000U);
  EXPECT_DOUBLE_EQ(all->emulation->posting_cost_us, 1.5);
  EXPECT_EQ(all->emulation->profile_hash, "f00d");
  EXPECT_EQ(all->host.name + all->host.kernel + all->host.cpu, "host-16.1.0some cpu");
  EXPECT_EQ(all->host.cores, 192U);
  EXPECT_EQ(all->build, "58af463c01ab-dirty");
  EXPECT_EQ(all->libfabric_version, "2.1");
  std::string broken = to_json(info);
  broken.replace(broken.find("\"posting_cost_us\":1.5"), 21, "\"posting_cost_us\":\"x\"");
  EXPECT_EQ(parse_instance_info(broken).error().message,
            "emulation.posting_cost_us must be a number");
}

TEST(Doctor, HostileNumbersOfDescriptorsOverflowNothing) {
  Pair pair;
  pair.d.limits.open_files = pair.d.limits.open_files_max = INT64_MAX;
  const auto checks = pair.checks();
  EXPECT_EQ(named(checks, "decode descriptors")->verdict, Verdict::kWarning);
  pair.d.limits.open_files = 2;
  const auto few = pair.checks();
  EXPECT_EQ(named(few, "decode descriptors")->verdict, Verdict::kOk);
}

TEST(Doctor, SaysWhichFabricEachSideWouldChooseAndThatNothingWasMoved) {
  Pair pair;
  EXPECT_EQ(named(pair.checks(), "KV path")->found,
            "prefill would choose shm, decode shm; compared only, no bytes were moved");
  pair.p.fabric = pair.d.fabric = "auto";
  pair.p.fabric_provider = "tcp", pair.d.fabric_provider = "efa";
  EXPECT_THAT(named(pair.checks(), "KV path")->found,
              ::testing::StartsWith("prefill would choose shm"));
  pair.d.boot_id = "boot-2";
  EXPECT_THAT(
      named(pair.checks(), "KV path")->found,
      ::testing::StartsWith("prefill would choose libfabric (tcp), decode libfabric (efa)"));
}

TEST(Doctor, WhatServersSayIsShownAndDoesNotActOnTheTerminal) {
  const std::vector<Check> checks = {
      failure("a", "\x1b]0;owned\x07\nFAIL all", std::string(5000, 'x'))};
  const std::string text = checks_text(checks);
  EXPECT_THAT(text, ::testing::HasSubstr("FAIL     a  \\x1b]0;owned\\x07\\nFAIL all\n"));
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_LT(text.size(), 1500U);
  EXPECT_EQ(checks_json(checks).find('\x1b'), std::string::npos);
}

TEST(Doctor, SaysItForPeopleAndForScripts) {
  const std::vector<Check> checks = {ok("a", "fine"), warning("bb", "so \"so\"", "do this"),
                                     failure("c", "broken", "do that")};
  const std::string text = checks_text(checks);
  EXPECT_THAT(text, ::testing::HasSubstr("ok       a   fine\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("FAIL     c   broken\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("-> do that\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("3 checks: 1 ok, 1 warnings, 1 failed\n"));
  EXPECT_EQ(checks_json(checks),
            R"({"ok":false,"checks":[{"name":"a","verdict":"ok","found":"fine","remedy":""},)"
            R"({"name":"bb","verdict":"warning","found":"so \"so\"","remedy":"do this"},)"
            R"({"name":"c","verdict":"fail","found":"broken","remedy":"do that"}]})");
}

}  // namespace
}  // namespace baton::serving
