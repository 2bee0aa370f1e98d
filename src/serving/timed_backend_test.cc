#include "serving/timed_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>

#include "serving/json.h"
#include "serving/serve.h"

namespace baton::serving {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Blocks of 64 tokens, so that they differ from the flag's default.
class TimedBackendTest : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("BATON_PROFILES", BATON_SOURCE_DIR "/profiles", 1); }
  void TearDown() override { ::unsetenv("BATON_PROFILES"); }

  static ServeOptions timed(const std::string& profile = "deepseek-v3-tp8-h200") {
    ServeOptions options;
    options.backend = "timed";
    options.model = profile;
    options.kv_transfer_config = R"({"kv_connector": "BatonConnector", "kv_role": "kv_producer"})";
    return options;
  }
  static std::string refusal(const ServeOptions& options) {
    const auto engine = engine_options(options);
    return engine ? "accepted" : engine.error().message;
  }
};

TEST_F(TimedBackendTest, TheProfileSaysWhatNoFlagSays) {
  const auto engine = engine_options(timed());
  ASSERT_TRUE(engine) << engine.error().message;
  EXPECT_EQ(engine->block_size, 64U);
  EXPECT_EQ(engine->max_num_seqs, 8U);
  EXPECT_EQ(engine->max_num_batched_tokens, 8192U);
  EXPECT_EQ(engine->num_blocks, 262144U / 64);
  EXPECT_EQ(engine->agent->link_bytes_per_second, 42'600'000'000U / 48);
  EXPECT_EQ(engine->agent->post_cost, std::chrono::nanoseconds(0));
  EXPECT_TRUE(engine->agent->merge_runs);

  ServeOptions small = timed();
  small.block_size = 16;  // the flag's default elsewhere, and said
  EXPECT_EQ(engine_options(small)->block_size, 16U);

  ServeOptions options = timed("renamed");
  options.profile = "deepseek-v3-tp8-h200";
  options.max_num_seqs = 3;
  options.block_size = 32;
  options.kv_bytes_scale = 16;
  options.link_rate = 5e6;
  options.prefill = "cached";
  const auto told = engine_options(options);
  ASSERT_TRUE(told) << told.error().message;
  EXPECT_EQ(told->max_num_seqs, 3U);
  EXPECT_EQ(told->block_size, 32U);
  EXPECT_EQ(told->max_num_batched_tokens, 32768U) << "what is cached is not cut into chunks";
  EXPECT_EQ(told->agent->link_bytes_per_second, 5'000'000U);
}

TEST_F(TimedBackendTest, OnlyThePublishedStylesPayForPosts) {
  ServeOptions options = timed();
  options.transfer_style = "published";
  auto engine = engine_options(options);
  ASSERT_TRUE(engine) << engine.error().message;
  EXPECT_EQ(engine->transfer_style, engine::TransferStyle::kPublished);
  EXPECT_EQ(engine->agent->post_cost, std::chrono::nanoseconds(2400));
  EXPECT_FALSE(engine->agent->merge_runs);
  ServeOptions pull = options;
  pull.kv_transfer_config = R"({"kv_connector":"BatonPullConnector","kv_role":"kv_consumer"})";
  engine = engine_options(pull);
  ASSERT_TRUE(engine) << engine.error().message;
  EXPECT_EQ(engine->transfer_style, engine::TransferStyle::kBaton) << "the steps are those of push";
  EXPECT_EQ(engine->agent->post_cost, std::chrono::nanoseconds(2400));
  EXPECT_FALSE(engine->agent->merge_runs);
  options.transfer_style = "published-merged";
  engine = engine_options(options);
  EXPECT_EQ(engine->agent->post_cost, std::chrono::nanoseconds(2400));
  EXPECT_TRUE(engine->agent->merge_runs);
  options.posting_cost = 0;
  EXPECT_EQ(engine_options(options)->agent->post_cost, std::chrono::nanoseconds(0));
  options.posting_cost = 0.5;
  EXPECT_EQ(engine_options(options)->agent->post_cost, std::chrono::nanoseconds(500));
}

TEST_F(TimedBackendTest, ItsFlagsAreRefusedWithoutIt) {
  ServeOptions options;
  options.profile = "x";
  options.kv_bytes_scale = 2;
  options.prefill = "cached";
  options.transfer_style = "published";
  options.link_rate = 1e9;
  options.posting_cost = 0;
  for (const char* flag : {"--profile", "--kv-bytes-scale", "--prefill", "--transfer-style",
                           "--link-rate", "--posting-cost"}) {
    EXPECT_THAT(refusal(options), HasSubstr(std::string(flag) + " is a flag of --backend timed"));
  }
  options = ServeOptions();
  options.backend = "gpu";
  EXPECT_THAT(refusal(options), HasSubstr("--backend gpu is unknown; known are cpu, timed"));
}

TEST_F(TimedBackendTest, NamesFlagAndValue) {
  const std::pair<std::function<void(ServeOptions&)>, const char*> table[] = {
      {[](auto& o) { o.prefill = "warm"; },
       "--prefill warm is unknown; known are computed, cached"},
      {[](auto& o) { o.transfer_style = "nixl"; }, "--transfer-style nixl is unknown"},
      {[](auto& o) { o.kv_bytes_scale = 7; }, "--kv-bytes-scale: kv_bytes_scale is 7"},
      {[](auto& o) { o.kv_bytes_scale = 0; }, "--kv-bytes-scale: kv_bytes_scale is 0"},
      {[](auto& o) { o.link_rate = 0; },
       "--link-rate must be from 1 to 1000000000000000 bytes a second, and is 0"},
      {[](auto& o) { o.link_rate = std::nan(""); }, "and is nan"},
      {[](auto& o) { o.link_rate = -5; }, "--link-rate must be from 1"},
      {[](auto& o) { o.link_rate = 0.5; }, "and is 0.5"},
      {[](auto& o) { o.posting_cost = -1; }, "--posting-cost must be from 0 to 1000"},
      {[](auto& o) { o.posting_cost = std::nan(""); }, "and is nan"},
      {[](auto& o) { o.dtype = "float32"; }, "--dtype float32 is not for --backend timed"},
      {[](auto& o) { o.profile = "none-such"; }, "--profile: profile none-such is no file"},
  };
  for (const auto& [spoil, words] : table) {
    ServeOptions options = timed();
    spoil(options);
    EXPECT_THAT(refusal(options), HasSubstr(words));
  }
}

TEST_F(TimedBackendTest, SaysWhatIsEmulated) {
  std::vector<std::string> problems;
  const auto backend = timed_backend(timed(), problems);
  ASSERT_TRUE(backend);
  EXPECT_THAT(problems, IsEmpty());
  engine::EngineOptions engine = engine_options(timed()).value();
  const Emulation emulation = backend->emulation(engine);
  EXPECT_EQ(emulation.text(),
            "emulated: profile deepseek-v3-tp8-h200 (deepseek-ai/DeepSeek-V3, one rank of TP 8), "
            "KV bytes / 48, prefill computed, transfer style baton, posting cost 2.4 us (not "
            "paid here), link 887500000 bytes/s");
  ServeOptions published = timed();
  published.transfer_style = "published";
  engine = engine_options(published).value();
  EXPECT_THAT(backend->emulation(engine).text(), HasSubstr("posting cost 2.4 us, link"));
  engine.agent->role = Role::kConsumer;
  EXPECT_THAT(backend->emulation(engine).text(), HasSubstr("2.4 us (not paid here)")) << "P writes";
  engine.agent->mode = Mode::kPull;
  EXPECT_THAT(backend->emulation(engine).text(), HasSubstr("posting cost 2.4 us, link"))
      << "D reads";
  const Json json = parse_json(emulation.json()).value();
  EXPECT_EQ(json["kv_bytes_scale"], 48);
  EXPECT_EQ(json["link_bytes_per_second"], 887'500'000);
}

}  // namespace
}  // namespace baton::serving
