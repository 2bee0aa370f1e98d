#include "bench/counters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::bench {
namespace {

using ::testing::HasSubstr;

constexpr char kPage[] =
    R"(# HELP baton_emulation_info What this instance emulates.
# TYPE baton_emulation_info gauge
baton_emulation_info{engine="d",emulated="true",my_profile="x",profile="qwen3",)"
    R"(kv_bytes_scale="32",link_bytes_per_second="1331250000"} 1
baton_emulated_step_seconds_total{engine="d"} 10
baton_emulated_overrun_seconds_total{engine="d"} 0.5
baton_link_lost_seconds_total{engine="d"} 1e-1
baton_emulated_overrun_steps_total{engine="d"} 7
)";

TEST(Counters, are_read_by_name_and_label) {
  const Counters c = parse_counters(kPage);
  EXPECT_EQ(c.profile, "qwen3");
  EXPECT_EQ(c.scale, 32);
  EXPECT_EQ(c.link_rate, 1'331'250'000);
  EXPECT_EQ(c.step_time, 10);
  EXPECT_EQ(c.overrun_time, 0.5);
  EXPECT_EQ(c.link_lost, 0.1);
  EXPECT_FALSE(c.kv_faults.has_value()) << "what is not said is not 0";
  EXPECT_EQ(parse_counters("vllm:num_requests_running 3\n").profile, "");
}

TEST(Counters, count_from_the_start_of_the_run_and_both_sides) {
  const Counters c = parse_counters(kPage);
  EXPECT_DOUBLE_EQ(*since(c, c).overrun_time, 0);
  EXPECT_FALSE(since(Counters{}, c).overrun_time.has_value()) << "of its whole life, not the run";
  EXPECT_EQ(since(Counters{}, c).profile, "qwen3");
  Counters anew = c;
  anew.overrun_time = 0.1;
  EXPECT_FALSE(since(c, anew).overrun_time.has_value()) << "it began anew meanwhile";
  EXPECT_DOUBLE_EQ(*together(c, c).step_time, 20);
  EXPECT_EQ(together(Counters{}, c).profile, "qwen3");
}

TEST(Counters, of_an_instance_that_came_later_are_not_the_runs) {
  Counters c = parse_counters(kPage);
  Counters later = c;
  later.overrun_time = 0.75;
  const Counters all = gained({{"a", c}}, {{"a", later}, {"b", c}});
  EXPECT_DOUBLE_EQ(*all.overrun_time, 0.25);
  EXPECT_EQ(all.profile, "qwen3");
  EXPECT_EQ(gained({}, {}).profile, "");
}

TEST(Counters, of_all_do_not_hide_the_one_that_did_not_tell) {
  const Counters c = parse_counters(kPage);
  EXPECT_TRUE(gained({{"p", c}, {"d", c}}, {{"p", c}, {"d", c}}).step_time.has_value());
  EXPECT_FALSE(gained({{"p", c}, {"d", c}}, {{"d", c}}).step_time.has_value()) << "P fell silent";
  EXPECT_FALSE(gained({{"d", c}}, {{"p", c}, {"d", c}}).step_time.has_value()) << "P came later";
}

TEST(Counters, say_when_this_machine_was_the_limit) {
  Counters c;
  c.step_time = 10;
  c.late_time = 0.4;
  c.overrun_time = 0.05;
  c.link_lost = 0.05;
  c.kv_faults = 0;
  EXPECT_EQ(emulation_trouble(c, 10), "");
  EXPECT_EQ(emulation_trouble({}, 10), "") << "a real engine";
  Counters bad = c;
  bad.overrun_time = 0.2;
  EXPECT_THAT(emulation_trouble(bad, 10), HasSubstr("0.20 s longer"));
  bad = c;
  bad.link_lost = 0.2;
  EXPECT_THAT(emulation_trouble(bad, 10), HasSubstr("the link stood still for 0.20 s"));
  bad = c;
  bad.late_time = 0.6;
  EXPECT_THAT(emulation_trouble(bad, 10), HasSubstr("0.60 s late"));
  bad = c;
  bad.kv_faults = 2;
  EXPECT_THAT(emulation_trouble(bad, 10), HasSubstr("2 prompts arrived with wrong KV"));
  bad = c;
  bad.posting_timeouts = 3;
  EXPECT_THAT(emulation_trouble(bad, 10), HasSubstr("3 steps went on before their reads"));
}

}  // namespace
}  // namespace baton::bench
