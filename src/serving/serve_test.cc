#include "serving/serve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "serving/kv_transfer_config.h"
#include "serving/route.h"

namespace baton::serving {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string published(const std::string& connector, const std::string& device = "cuda") {
  return R"({"kv_connector":")" + connector + R"(","kv_buffer_device":")" + device +
         R"(","kv_role":"kv_producer","engine_id":"prefill-engine-001","kv_rank":0,
  "kv_parallel_size":2,"kv_connector_extra_config":{"backends":["LIBFABRIC"]}})";
}

TEST(KvTransferConfig, TakesVllmsKeys) {
  const auto config = parse_kv_transfer_config(R"({"kv_connector": "NixlPushConnector",
    "kv_role": "kv_consumer", "engine_id": "d1", "kv_rank": 1, "kv_parallel_size": 2,
    "kv_buffer_device": "cpu", "kv_ip": "127.0.0.2", "kv_port": 5600,
    "kv_connector_extra_config": {"backends": ["SHM"], "kv_lease_duration": 7,
                                  "kv_recompute_threshold": 128},
    "kv_load_failure_policy": "recompute"})");
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->role, Role::kConsumer);
  EXPECT_EQ(config->mode, Mode::kPush);
  EXPECT_EQ(config->engine_id, "d1");
  EXPECT_EQ(config->host, "127.0.0.2");
  EXPECT_EQ(config->port, 5600);
  EXPECT_EQ(config->lease, std::chrono::seconds(7));
  EXPECT_EQ(config->load_failure_policy, engine::LoadFailurePolicy::kRecompute);
  EXPECT_EQ(config->kv_recompute_threshold, 128U);
  const auto plain = parse_kv_transfer_config(published("NixlConnector", "cpu"));
  EXPECT_EQ(plain->kv_recompute_threshold, 64U) << "vLLM's default";
}

TEST(KvTransferConfig, NamesEveryFault) {
  const std::pair<const char*, const char*> table[] = {
      {"{kv", "invalid JSON"},
      {"[]", "must be a JSON object, and is []"},
      {R"({"kv_role": "kv_both"})", "kv_connector is missing; known are BatonConnector"},
      {R"({"kv_connector": "BatonConnector"})", "kv_role is missing; known are kv_producer"},
      {R"({"kv_connector": 5, "kv_role": "kv_both"})", "kv_connector must be a text, and is 5"},
      {R"({"kv_connector": "X", "kv_role": "kv_both"})", "kv_connector X is unknown"},
      {R"({"kv_connector": "BatonConnector", "kv_role": "kv_king"})", "kv_role kv_king is unknown"},
      {R"({"kv_connector": "BatonConnector", "kv_role": "kv_both", "kv_roll": 1})",
       "unknown key \"kv_roll\"; known are kv_connector"},
      {R"({"kv_connector": "BatonConnector", "kv_role": "kv_both",
           "kv_connector_extra_config": {"lees": 1}})",
       "unknown key \"lees\"; known are backends"},
      {R"({"kv_connector": "BatonConnector", "kv_role": "kv_both",
           "kv_connector_extra_config": {"backends": ["UCX"]}})",
       "backends \"UCX\""},
      {R"({"kv_connector": "BatonConnector", "kv_role": "kv_both",
           "kv_connector_extra_config": {"insecure": "yes"}})",
       "insecure must be true or false, and is \"yes\""},
      {R"({"kv_connector": "BatonPullConnector", "kv_role": "kv_consumer",
           "kv_connector_extra_config": {"bidirectional_kv_xfer": true}})",
       "this one is of pull, and kv_role is kv_consumer"},
      {R"({"kv_connector": "BatonConnector", "kv_role": "kv_both",
           "kv_connector_extra_config": {"bidirectional_kv_xfer": true}})",
       "this one is of push, and kv_role is kv_both"},
      {R"({"kv_connector": "BatonConnector", "kv_role": "kv_both",
           "kv_connector_extra_config": {"kv_recompute_threshold": -1}})",
       "kv_recompute_threshold must be an integer from 0 to 1073741824, and is -1"},
      {R"({"kv_connector": "BatonConnector", "kv_role": "kv_both",
           "kv_connector_extra_config": {"decoder_kv_blocks_ttl": 480}})",
       "decoder_kv_blocks_ttl 480 is not offered: kept blocks are held as long as all others that "
       "wait for a reader: give kv_lease_duration, or the flag --lease"},
      {R"({"kv_connector": "BatonConnector", "kv_role": "kv_both",
           "kv_connector_extra_config": {"kv_allowed_peers": "p1"}})",
       "kv_allowed_peers must be a list of texts, and is \"p1\""},
      {R"({"kv_connector": "BatonConnector", "kv_role": "kv_both", "kv_buffer_device": "cuda"})",
       "kv_buffer_device cuda"},
      {R"({"kv_connector": "BatonConnector", "kv_role": "kv_both", "kv_port": 70000})",
       "kv_port must be an integer from 0 to 65535, and is 70000"},
      {R"({"kv_connector": "BatonConnector", "kv_role": "kv_both", "kv_rank": 2,
           "kv_parallel_size": 2})",
       "kv_rank 2 is none of kv_parallel_size 2"},
      {R"({"kv_connector": "BatonConnector", "kv_role": "kv_both", "kv_parallel_size": 0})",
       "kv_rank 0 is none of kv_parallel_size 0"},
      {R"({"kv_connector": "BatonConnector", "kv_role": "kv_both", "engine_id": ""})", "engine_id"},
      {R"({"kv_connector": "BatonConnector", "kv_role": "kv_both", "kv_load_failure_policy": "x"})",
       "kv_load_failure_policy x is unknown"},
  };
  for (const auto& [json, words] : table) {
    SCOPED_TRACE(json);
    const auto config = parse_kv_transfer_config(json);
    ASSERT_FALSE(config.has_value());
    EXPECT_THAT(config.error().message, HasSubstr(words));
  }
}

TEST(KvTransferConfig, TheConnectorSaysTheMode) {
  for (const auto& [connector, mode] : {std::pair{"BatonConnector", Mode::kPush},
                                        {"BatonPushConnector", Mode::kPush},
                                        {"NixlPushConnector", Mode::kPush},
                                        {"BatonPullConnector", Mode::kPull},
                                        {"NixlConnector", Mode::kPull}}) {
    const auto config = parse_kv_transfer_config(published(connector, "cpu"));
    ASSERT_TRUE(config.has_value()) << config.error().message;
    EXPECT_EQ(config->mode, mode) << connector;
    EXPECT_EQ(config->fabric, "libfabric");
  }
}

TEST(ServeOptions, ThePublishedCommandLinesAreRefusedWithEveryReasonAtOnce) {
  for (const char* connector : {"NixlConnector", "NixlPushConnector"}) {
    ServeOptions options;
    options.model = "Qwen/Qwen3-32B";
    options.dtype = "bfloat16";
    options.tensor_parallel_size = 8;
    options.max_model_len = 32768;
    options.max_num_seqs = 8;
    options.kv_transfer_config = published(connector);
    const auto engine = engine_options(options);
    ASSERT_FALSE(engine.has_value());
    for (const char* words : {"--tensor-parallel-size 8", "kv_buffer_device cuda"}) {
      EXPECT_THAT(engine.error().message, HasSubstr(words));
    }
    EXPECT_THAT(engine.error().message, ::testing::Not(HasSubstr("kv_connector")));
  }
}

TEST(ServeOptions, ThePullLoopIsOfPullAlone) {
  ServeOptions options;
  options.kv_transfer_config = published("NixlConnector", "cpu");
  EXPECT_EQ(engine_options(options)->pull_loop, engine::PullLoop::kThreaded);
  options.pull_loop = "engine";
  const auto engine = engine_options(options);
  ASSERT_TRUE(engine.has_value()) << engine.error().message;
  EXPECT_EQ(engine->pull_loop, engine::PullLoop::kEngine);
  EXPECT_EQ(engine->agent->mode, Mode::kPull);
  options.pull_loop = "steps";
  EXPECT_THAT(engine_options(options).error().message,
              HasSubstr("--pull-loop must be engine or threaded, and is steps"));
  options.pull_loop = "engine";
  options.kv_transfer_config = published("NixlPushConnector", "cpu");
  EXPECT_THAT(engine_options(options).error().message, HasSubstr("--pull-loop engine is about"));
}

TEST(ServeOptions, BecomeAnEngine) {
  ServeOptions options;
  options.block_size = 32;
  options.max_model_len = 100;
  options.max_num_seqs = 3;
  options.peer_timeout = 1.5;
  options.lease = 12;
  options.verify_blocks = true;
  options.kv_transfer_config = R"({"kv_connector": "BatonConnector", "kv_role": "kv_producer"})";
  ::setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", "5601", 1);
  const auto engine = engine_options(options);
  ::unsetenv("VLLM_NIXL_SIDE_CHANNEL_PORT");
  ASSERT_TRUE(engine.has_value()) << engine.error().message;
  EXPECT_EQ(engine->block_size, 32U);
  EXPECT_EQ(engine->max_num_seqs, 3U);
  ASSERT_TRUE(engine->agent.has_value());
  EXPECT_EQ(engine->agent->role, Role::kProducer);
  EXPECT_EQ(engine->agent->port, 5601);
  EXPECT_EQ(engine->agent->peer_timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(engine->agent->lease_renewal, std::chrono::seconds(2));
  EXPECT_TRUE(engine->agent->verify_blocks);
  EXPECT_FALSE(engine->agent->engine_id.empty());
}

TEST(ServeOptions, NameFlagAndValue) {
  ServeOptions options;
  options.dtype = "int3";
  options.block_size = 0;
  options.peer_timeout = -1;
  const auto engine = engine_options(options);
  ASSERT_FALSE(engine.has_value());
  EXPECT_THAT(engine.error().message, HasSubstr("--dtype int3"));
  EXPECT_THAT(engine.error().message,
              HasSubstr("--block-size must be from 1 to 1024 tokens, and is 0"));
  EXPECT_THAT(engine.error().message, HasSubstr("--peer-timeout"));
}

TEST(ServeOptions, SecurityComesFromFlagsAndFromTheConfiguration) {
  ServeOptions options;
  options.kv_transfer_config = R"({"kv_connector": "BatonConnector", "kv_role": "kv_both",
    "kv_connector_extra_config": {"kv_tls_cert": "c", "kv_tls_key": "k", "kv_tls_ca": "a",
      "kv_psk_file": "p", "kv_allowed_peers": ["10.0.0.0/8"], "insecure": true}})";
  auto engine = engine_options(options);
  ASSERT_TRUE(engine.has_value()) << engine.error().message;
  Security security = engine->agent->security;
  EXPECT_EQ(security.certificate_file, "c");
  EXPECT_EQ(security.private_key_file, "k");
  EXPECT_EQ(security.ca_file, "a");
  EXPECT_EQ(security.psk_file, "p");
  EXPECT_EQ(security.allowed_peers, std::vector<std::string>{"10.0.0.0/8"});
  EXPECT_TRUE(security.insecure);
  options.kv_psk_file = "other";
  options.kv_allowed_peers = {"p1", "p2:5600"};
  engine = engine_options(options);
  ASSERT_TRUE(engine.has_value());
  EXPECT_EQ(engine->agent->security.psk_file, "other");
  EXPECT_EQ(engine->agent->security.ca_file, "a");
  EXPECT_EQ(engine->agent->security.allowed_peers, (std::vector<std::string>{"p1", "p2:5600"}));
  // Nothing said: nothing open.
  options = ServeOptions();
  options.kv_transfer_config = R"({"kv_connector": "BatonConnector", "kv_role": "kv_both"})";
  engine = engine_options(options);
  ASSERT_TRUE(engine.has_value());
  EXPECT_FALSE(engine->agent->security.insecure);
  EXPECT_TRUE(engine->agent->security.allowed_peers.empty());
  EXPECT_EQ(engine->agent->host, "127.0.0.1");
}

TEST(ServeOptions, FlagsOfAHandOverWithoutOneAreAFault) {
  ServeOptions options;
  options.insecure = true;
  options.fabric = "shm";
  options.fabric_address = "eth1";
  const auto engine = engine_options(options);
  ASSERT_FALSE(engine.has_value());
  for (const char* flag : {"--insecure", "--fabric", "--fabric-address"}) {
    EXPECT_THAT(engine.error().message,
                HasSubstr(std::string(flag) + " is about the hand-over, which needs "
                                              "--kv-transfer-config"));
  }
  EXPECT_THAT(engine.error().message, Not(HasSubstr("--kv-psk-file")));
}

TEST(RouteOptions, NameFlagAndValue) {
  RouteOptions options;
  options.prefill = {"ftp://x", "http://127.0.0.1:1/v1", "http://p:1", "http://p:1/", "http://p:1"};
  options.first_token = "both";
  options.idle_timeout = 0;
  const auto router = router_options(options);
  ASSERT_FALSE(router.has_value());
  for (const char* words : {"ftp://x", "/v1", "--decode needs", "--first-token must be", "both",
                            "--idle-timeout", "--prefill http://p:1: it is listed twice"}) {
    EXPECT_THAT(router.error().message, HasSubstr(words));
  }
}

TEST(RouteOptions, AskSeveralTimesWithinAPeerTimeout) {
  RouteOptions options;
  options.prefill = options.decode = {"http://127.0.0.1:1"};
  for (const double peer_timeout : {0.2, 1.0, 5.0, 60.0}) {
    options.peer_timeout = peer_timeout;
    const auto router = router_options(options);
    ASSERT_TRUE(router.has_value());
    EXPECT_LE(router->upstreams.poll_interval * 4, router->upstreams.peer_timeout);
    EXPECT_LE(router->upstreams.poll_interval, std::chrono::seconds(1));
  }
}

}  // namespace
}  // namespace baton::serving
