#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "bench/running_pair.h"
#include "bench/sweep_modes.h"
#include "bench/sweep_options.h"
#include "bench/sweep_plan.h"
#include "serving/version.h"

namespace baton::bench {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

SweepOptions small() {
  SweepOptions o;
  o.modes = "local,push";
  o.qps_list = "1 8";
  o.input_lens = "1024,16384";
  o.output_lens = "128";
  o.point_seconds = 10;
  return o;
}

std::vector<SweepPoint> points(const SweepOptions& o) {
  return sweep_points(read_grid(o).value(), o);
}

std::string fault(const SweepOptions& o) {
  const auto grid = read_grid(o);
  return grid ? "" : grid.error().message;
}

TEST(Sweep, lists_are_those_of_a_shell_or_with_commas) {
  const SweepGrid grid = read_grid(small()).value();
  EXPECT_THAT(grid.qps, ElementsAre(1, 8));
  EXPECT_THAT(grid.input_lens, ElementsAre(1024, 16384));
  EXPECT_THAT(grid.modes, ElementsAre("local", "push"));
}

TEST(Sweep, names_points_as_the_article_names_its_results) {
  const auto all = points(small());
  ASSERT_EQ(all.size(), 8U);
  EXPECT_EQ(all[0].name(), "local_qps1_in1024_out128_iter1");
  EXPECT_EQ(all[1].name(), "push_qps1_in1024_out128_iter1") << "modes of a point follow each other";
  EXPECT_EQ(all[7].name(), "push_qps8_in16384_out128_iter1");
  SweepPoint half;
  half.mode = "push";
  half.qps = 0.5;
  EXPECT_THAT(half.name(), HasSubstr("_qps0.5_"));
}

TEST(Sweep, begins_each_iteration_with_the_next_mode_and_turns_round_every_other_time) {
  SweepOptions o = small();
  o.modes = "local,pull,push";
  o.iterations = 3;
  o.qps_list = o.input_lens = "1";
  std::vector<std::string> names;
  for (const SweepPoint& point : points(o)) names.push_back(point.mode);
  EXPECT_THAT(names, ElementsAre("local", "pull", "push", "pull", "local", "push", "push", "local",
                                 "pull"));
}

TEST(Sweep, gives_every_mode_the_same_requests_and_every_point_its_own) {
  std::set<std::uint64_t> seeds;
  const auto all = points(small());
  for (std::size_t i = 0; i < all.size(); i += 2) {
    EXPECT_EQ(all[i].seed, all[i + 1].seed);
    EXPECT_EQ(all[i].num_prompts, all[i + 1].num_prompts);
    seeds.insert(all[i].seed);
  }
  EXPECT_EQ(seeds.size(), all.size() / 2);
  EXPECT_EQ(all[0].num_prompts, 10U);
  EXPECT_EQ(all[2].num_prompts, 80U);
  SweepOptions other = small();
  other.seed = 1;
  EXPECT_NE(points(other)[0].seed, all[0].seed);
}

TEST(Sweep, expects_a_point_to_take_at_least_its_arrivals) {
  for (const SweepPoint& point : points(small())) {
    EXPECT_GE(expected_time(point, small()), std::chrono::seconds(10));
  }
}

TEST(Sweep, expects_long_answers_and_real_models_to_take_longer) {
  SweepPoint point = points(small())[0];
  const Duration emulated = expected_time(point, small());
  point.output_len = 4096;
  EXPECT_GT(expected_time(point, small()) - emulated, std::chrono::seconds(25));
  SweepOptions real = small();
  real.backend = "cpu";
  EXPECT_GT(expected_time(point, real) - emulated, std::chrono::seconds(80));
}

TEST(Sweep, wrong_values_name_flag_and_value) {
  const auto with = [](auto change) {
    SweepOptions o = small();
    change(o);
    return fault(o);
  };
  EXPECT_EQ(with([](SweepOptions&) {}), "");
  EXPECT_THAT(with([](auto& o) { o.modes = "push,thread-pull"; }),
              AllOf(HasSubstr("'thread-pull'"), HasSubstr("did you mean 'threaded-pull'")));
  EXPECT_THAT(with([](auto& o) { o.modes = ""; }), HasSubstr("--modes"));
  EXPECT_THAT(with([](auto& o) { o.qps_list = "1 x"; }), HasSubstr("'x'"));
  EXPECT_THAT(with([](auto& o) { o.qps_list = "2 1 1.0"; }), HasSubstr("each given once"));
  EXPECT_THAT(with([](auto& o) { o.input_lens = "64 64"; }), HasSubstr("'64'"));
  EXPECT_THAT(with([](auto& o) { o.modes = "push,local,push"; }), HasSubstr("'push'"));
  EXPECT_THAT(with([](auto& o) { o.qps_list = "0"; }), HasSubstr("'0'"));
  EXPECT_THAT(with([](auto& o) { o.input_lens = "1.5"; }), HasSubstr("'1.5'"));
  EXPECT_THAT(with([](auto& o) { o.output_lens = " "; }), HasSubstr("--output-lens"));
  EXPECT_THAT(with([](auto& o) { o.first_token = "router"; }), HasSubstr("'router'"));
  EXPECT_THAT(with([](auto& o) { o.backend = "cuda"; }), HasSubstr("'cuda'"));
  EXPECT_THAT(with([](auto& o) { o.backend = "cpu"; }), HasSubstr("--model"));
  EXPECT_THAT(with([](auto& o) { o.posting_cost = -1; }), HasSubstr("--posting-cost"));
  EXPECT_THAT(with([](auto& o) {
                o.posting_cost = 0;
                o.backend = "cpu";
                o.model = "small.gguf";
              }),
              HasSubstr("--posting-cost"));
  EXPECT_THAT(with([](auto& o) { o.iterations = 0; }), HasSubstr("--iterations"));
  EXPECT_THAT(with([](auto& o) { o.router_url = "http://x:1"; }),
              HasSubstr("the one mode of the running servers"));
  EXPECT_THAT(with([](auto& o) {
                o.modes = "push";
                o.prefill_url = "http://x:1";
              }),
              HasSubstr("belong together"));
}

TEST(Sweep, a_mode_that_the_backend_does_not_have_is_refused) {
  SweepOptions o = small();
  o.backend = "cpu";
  o.model = "small.gguf";
  EXPECT_EQ(fault(o), "");
  o.modes = "published-push";
  EXPECT_THAT(fault(o), AllOf(HasSubstr("--backend cpu"), HasSubstr("'published-push'")));
  o.modes = "push";
  o.prefill = "cached";
  EXPECT_THAT(fault(o), HasSubstr("--prefill cached needs --backend timed"));
}

RunningPair emulated_pair() {
  RunningPair pair;
  pair.prefill.role = "kv_producer";
  pair.decode.role = "kv_consumer";
  for (auto* info : {&pair.prefill, &pair.decode}) {
    info->mode = "push";
    info->emulated = "emulated: profile qwen3-32b-tp8-h200 (Qwen/Qwen3-32B, one rank of TP 8)";
    info->emulation = {"qwen3-32b-tp8-h200", "computed", 32, 1'331'250'000, 1.5, ""};
    info->transfer_style = "baton";
    info->max_num_seqs = 8;
    info->weights = "w";
    info->prefix_caching = false;
  }
  pair.prefill.engine_id = "prefill-engine-001";
  pair.prefill.handover_host = "10.0.0.1";
  pair.prefill.handover_port = 5600;
  return pair;
}

std::string contradiction(const RunningPair& pair, std::string_view mode, const SweepOptions& o) {
  const Status fits = check_running_pair(pair, *find_mode(mode), o);
  return fits ? "" : fits.error().message;
}

SweepOptions running() {
  SweepOptions o;
  o.prefill_url = "http://10.0.0.1:8100";
  o.decode_url = "http://10.0.0.2:8200";
  return o;
}

TEST(RunningPair, says_what_it_is_and_what_it_was_told_must_agree) {
  SweepOptions o;
  const RunningPair pair = emulated_pair();
  EXPECT_EQ(contradiction(pair, "push", o), "");
  o.prefill_tp_size = o.prefill_pp_size = 1;
  o.prefill_engine_id = "prefill-engine-001";
  o.prefill_kv_host = "10.0.0.1";
  o.prefill_side_channel_port = 5600;
  EXPECT_EQ(contradiction(pair, "push", o), "") << "right values are taken";
  o.prefill_tp_size = 8;
  EXPECT_THAT(contradiction(pair, "push", o),
              AllOf(HasSubstr("--prefill-tp-size 8, and prefill says 1"), HasSubstr("TP 8")));
  o = {};
  o.prefill_pp_size = 2;
  EXPECT_THAT(contradiction(pair, "push", o), HasSubstr("--prefill-pp-size 2, and prefill says 1"));
  o = {};
  o.prefill_side_channel_port = 5601;
  o.prefill_engine_id = "p";
  o.prefill_kv_host = "10.0.0.9";
  EXPECT_EQ(contradiction(pair, "push", o),
            "--prefill-side-channel-port 5601, and prefill says 5600\n"
            "--prefill-engine-id p, and prefill says prefill-engine-001\n"
            "--prefill-kv-host 10.0.0.9, and prefill says 10.0.0.1");
}

TEST(RunningPair, no_result_gets_a_name_that_the_servers_do_not_bear) {
  SweepOptions o;
  RunningPair pair = emulated_pair();
  EXPECT_EQ(contradiction(pair, "pull", o),
            "mode pull (pull), and prefill says push\nmode pull (pull), and decode says push");
  EXPECT_THAT(contradiction(pair, "published-push", o),
              HasSubstr("transfer style published, and prefill says baton"));
  o.backend = "cpu";
  EXPECT_THAT(contradiction(pair, "push", o),
              HasSubstr("--backend cpu, and prefill says emulated"));
  o = {};
  pair.decode.emulated.clear();
  EXPECT_EQ(contradiction(pair, "push", o),
            "--backend timed, and decode says that it computes itself");
  std::swap(pair.prefill, pair.decode);
  EXPECT_THAT(contradiction(pair, "push", o),
              AllOf(HasSubstr("it says kv_consumer"), HasSubstr("it says kv_producer")));
}

TEST(RunningPair, one_instance_behind_the_url_of_a_router_is_local_and_nothing_else) {
  RunningPair one = emulated_pair();
  for (auto* info : {&one.prefill, &one.decode}) info->role = info->mode = "";
  one.is_one = true;
  SweepOptions o;
  o.router_url = "http://10.0.0.1:8000";
  EXPECT_EQ(contradiction(one, "local", adopt(one, o)), "");
  for (const char* mode : {"push", "threaded-pull", "pull"}) {
    EXPECT_THAT(contradiction(one, mode, adopt(one, o)),
                HasSubstr("--router-url is one instance, which hands nothing over"));
  }
  const auto servers = sweep_settings(adopt(one, o))["servers"];
  EXPECT_EQ(servers["local"]["max_num_seqs"], 8);
  EXPECT_EQ(servers.size(), 1U);
  one.prefill.prefix_caching = true;
  EXPECT_THAT(contradiction(one, "local", adopt(one, o)), HasSubstr("the instance keeps prefixes"));
  one.prefill.emulation->prefill = "cached";
  EXPECT_EQ(contradiction(one, "local", adopt(one, o)), "") << "they are not computed anyway";
  o.max_num_seqs = 9;
  o.given.max_num_seqs = true;
  EXPECT_THAT(contradiction(one, "local", adopt(one, o)), HasSubstr("the instance says 8"));
}

TEST(RunningServers, whose_address_is_none_are_refused_by_the_flag) {
  SweepOptions o = small();
  o.modes = "push";
  o.router_url = "http://10.0.0.1:80:";
  EXPECT_THAT(fault(o), AllOf(HasSubstr("--router-url"), HasSubstr("10.0.0.1:80:")));
  o.router_url = "";
  o.prefill_url = "http://10.0.0.1:8100";
  o.decode_url = "10.0.0.2";
  EXPECT_THAT(fault(o), HasSubstr("--decode-url"));
}

TEST(RunningPair, a_mode_of_pull_is_one_of_its_loop_and_style) {
  RunningPair pair = emulated_pair();
  for (auto* info : {&pair.prefill, &pair.decode}) {
    info->mode = "pull";
    info->pull_loop = "threaded";
  }
  EXPECT_EQ(contradiction(pair, "threaded-pull", {}), "");
  EXPECT_EQ(contradiction(pair, "pull", {}), "");
  EXPECT_THAT(contradiction(pair, "engine-loop-pull", {}),
              AllOf(HasSubstr("pull loop engine, and decode says threaded"),
                    HasSubstr("transfer style published, and decode says baton")));
  pair.decode.pull_loop = "engine";
  EXPECT_EQ(contradiction(pair, "threaded-pull", {}), "pull loop threaded, and decode says engine");
  pair.decode.pull_loop.clear();
  EXPECT_EQ(contradiction(pair, "threaded-pull", {}), "") << "an older one does not say";
}

TEST(RunningPair, every_value_that_was_given_is_compared) {
  const std::pair<const char*, std::function<void(SweepOptions&)>> table[] = {
      {"--profile deepseek-v3-tp8-h200, and decode says qwen3-32b-tp8-h200",
       [](auto& o) { o.profile = "deepseek-v3-tp8-h200", o.given.profile = true; }},
      {"--prefill cached, and decode says computed",
       [](auto& o) { o.prefill = "cached", o.given.prefill = true; }},
      {"--max-num-seqs 16, and decode says 8",
       [](auto& o) { o.max_num_seqs = 16, o.given.max_num_seqs = true; }},
      {"--max-num-seqs 0 (no limit: 1024 or more), and prefill says 8",
       [](auto& o) { o.max_num_seqs = 0, o.given.max_num_seqs = true; }},
      {"--posting-cost 0, and prefill says 1.5", [](auto& o) { o.posting_cost = 0; }}};
  for (const auto& [words, change] : table) {
    SweepOptions o = running();
    change(o);
    const SweepOptions adopted = adopt(emulated_pair(), o);
    EXPECT_THAT(contradiction(emulated_pair(), "push", adopted), HasSubstr(words));
  }
  SweepOptions right = running();
  right.max_num_seqs = 8;
  right.given.max_num_seqs = true;
  right.posting_cost = 1.5;
  EXPECT_EQ(contradiction(emulated_pair(), "push", right), "");
}

TEST(RunningPair, both_must_be_alike_and_what_differs_is_named) {
  using Info = serving::InstanceInfo;
  const std::pair<const char*, std::function<void(Info&)>> table[] = {
      {"profile: prefill says qwen3-32b-tp8-h200, and decode says x",
       [](Info& i) { i.emulation->profile = "x"; }},
      {"prefill: prefill says computed, and decode says cached",
       [](Info& i) { i.emulation->prefill = "cached"; }},
      {"KV bytes scale: prefill says 32, and decode says 16",
       [](Info& i) { i.emulation->kv_bytes_scale = 16; }},
      {"posting cost (us): prefill says 1.5, and decode says 0",
       [](Info& i) { i.emulation->posting_cost_us = 0; }},
      {"transfer style: prefill says baton, and decode says published",
       [](Info& i) { i.transfer_style = "published"; }},
      {"model (fingerprint of its weights): prefill says w, and decode says v",
       [](Info& i) { i.weights = "v"; }}};
  for (const auto& [words, change] : table) {
    RunningPair pair = emulated_pair();
    change(pair.decode);
    EXPECT_THAT(contradiction(pair, "push", {}), HasSubstr(words));
    pair.decode.emulation.reset();
    pair.decode.transfer_style.clear();
    pair.decode.weights.clear();
    EXPECT_EQ(contradiction(pair, "push", {}), "") << "an older one does not say";
  }
}

TEST(RunningPair, must_have_a_model_name_in_common) {
  RunningPair pair = emulated_pair();
  pair.prefill.models = {"Qwen", "Qwen/Qwen3-32B"};
  pair.decode.models = {"qwen"};
  EXPECT_EQ(contradiction(pair, "push", {}),
            "served model name: prefill says Qwen, Qwen/Qwen3-32B, and decode says qwen");
  pair.decode.models = {"qwen", "Qwen"};
  EXPECT_EQ(contradiction(pair, "push", {}), "");
  SweepOptions o;
  o.served_model_name = "Qwen/Qwen3-32B";
  EXPECT_EQ(contradiction(pair, "push", o), "") << "nobody gave it";
  o.given.served_model_name = true;
  EXPECT_EQ(contradiction(pair, "push", o),
            "--served-model-name Qwen/Qwen3-32B, and decode says qwen, Qwen");
  pair.decode.models.clear();
  EXPECT_EQ(contradiction(pair, "push", {}), "") << "an older one does not say";
}

TEST(RunningPair, says_what_nobody_said) {
  SweepOptions o = running();
  RunningPair pair = emulated_pair();
  pair.prefill.emulation->profile = "deepseek-v3-tp8-h200";
  pair.prefill.emulation->prefill = "cached";
  pair.decode.max_num_seqs = 16;
  const SweepOptions adopted = adopt(pair, o);
  EXPECT_EQ(adopted.backend, "timed");
  EXPECT_EQ(adopted.profile, "deepseek-v3-tp8-h200");
  EXPECT_EQ(adopted.prefill, "cached");
  EXPECT_EQ(adopted.max_num_seqs, 16U);
  const auto settings = sweep_settings(adopted);
  EXPECT_EQ(settings["profile"], "deepseek-v3-tp8-h200");
  EXPECT_EQ(settings["max_num_seqs"], 16);
  EXPECT_EQ(settings["servers"]["decode"]["kv_bytes_scale"], 32);
  EXPECT_EQ(settings["servers"]["prefill"]["link_bytes_per_second"], 1'331'250'000);
  EXPECT_EQ(settings["servers"]["prefill"]["posting_cost_us"], 1.5);
  EXPECT_EQ(settings["servers"]["decode"]["prefix_caching"], false);
  EXPECT_EQ(settings["servers"]["decode"]["model"], "w");
  EXPECT_EQ(settings["servers"]["decode"]["pull_loop"], nullptr);
  o.given = {true, true, true, true, true};
  EXPECT_EQ(adopt(pair, o).profile, "qwen3-32b-tp8-h200") << "so that the difference is named";
  EXPECT_EQ(adopt(pair, o).prefill, "computed");
  EXPECT_EQ(adopt(pair, o).max_num_seqs, 8U);
  pair.prefill.emulated.clear();
  EXPECT_EQ(adopt(pair, o).backend, "timed");
  o.given = {};
  EXPECT_EQ(adopt(pair, o).backend, "cpu");
}

TEST(RunningServers, of_which_nobody_said_what_they_are_have_nulls) {
  SweepOptions o;
  o.router_url = "http://10.0.0.3:8000";
  auto settings = sweep_settings(o);
  for (const char* key : {"backend", "profile", "prefill", "first_token", "max_num_seqs",
                          "posting_cost_us", "servers", "model"}) {
    EXPECT_EQ(settings[key], nullptr) << key;
  }
  EXPECT_EQ(sweep_variant(o), "");
  EXPECT_EQ(known_profile(o) + known_prefill(o) + known_first_token(o), "");
  o.given = {true, true, true, true, true};
  settings = sweep_settings(o);
  EXPECT_EQ(settings["backend"], "timed") << "what was said to the sweep is known";
  EXPECT_EQ(settings["profile"], "qwen3-32b-tp8-h200");
  EXPECT_EQ(settings["first_token"], "decode");
  EXPECT_EQ(settings["max_num_seqs"], 8);
}

TEST(RunningServers, have_their_flags_and_their_model_already) {
  SweepOptions o = small();
  o.modes = "push";
  o.router_url = "http://10.0.0.3:8000";
  EXPECT_EQ(fault(o), "");
  o.serve_flags = {"--threads"};
  EXPECT_THAT(fault(o), AllOf(HasSubstr("--serve-flag"), HasSubstr("'--threads'")));
  o.serve_flags.clear();
  o.model = "small.gguf";
  EXPECT_THAT(fault(o), AllOf(HasSubstr("--model"), HasSubstr("'small.gguf'")));
}

TEST(RunningPair, is_named_where_values_are_to_be_compared) {
  SweepOptions o = small();
  o.prefill_tp_size = 8;
  EXPECT_THAT(fault(o), HasSubstr("--prefill-url and --decode-url"));
}

TEST(RunningPair, that_does_not_answer_is_named) {
  SweepOptions o;
  o.prefill_url = "http://127.0.0.1:1/";
  o.decode_url = "http://127.0.0.1:1";
  const auto asked = ask_running(o);
  ASSERT_FALSE(asked);
  EXPECT_EQ(asked.error().code, Errc::kUnavailable);
  EXPECT_THAT(asked.error().message, HasSubstr("--prefill-url http://127.0.0.1:1: "));
}

TEST(SweepModes, differ_in_connector_loop_and_style_alone) {
  const SweepOptions o = small();
  const auto push = decode_command(*find_mode("push"), o);
  const auto pull = decode_command(*find_mode("threaded-pull"), o);
  const auto published = decode_command(*find_mode("engine-loop-pull"), o);
  EXPECT_THAT(push, Contains(HasSubstr(R"("kv_connector":"BatonConnector")")));
  EXPECT_THAT(push, Not(Contains("--pull-loop")));
  EXPECT_THAT(pull, Contains(HasSubstr(R"("kv_connector":"BatonPullConnector")")));
  EXPECT_THAT(pull, AllOf(Contains("threaded"), Contains("baton")));
  EXPECT_THAT(published, AllOf(Contains("engine"), Contains("published")));
  EXPECT_THAT(route_command(*find_mode("threaded-pull"), o, "http://p", "http://d"),
              AllOf(Contains("--mode"), Contains("pull"), Contains("decode")));
}

TEST(SweepModes, merged_ones_differ_from_the_published_in_the_style_alone) {
  const SweepOptions o = small();
  for (const char* name : {"engine-loop-pull", "published-push"}) {
    auto published = decode_command(*find_mode(name), o);
    std::replace(published.begin(), published.end(), std::string("published"),
                 std::string("published-merged"));
    EXPECT_EQ(decode_command(*find_mode(std::string(name) + "-merged"), o), published);
  }
}

TEST(SweepModes, a_posting_cost_goes_to_those_that_pay_it) {
  SweepOptions o = small();
  for (const SweepMode& mode : all_modes()) {
    o.posting_cost.reset();
    EXPECT_THAT(prefill_command(mode, o), Not(Contains("--posting-cost"))) << mode.name;
    o.posting_cost = 0;
    const auto with = prefill_command(mode, o);
    const bool is_published = mode.transfer_style.starts_with("published");
    EXPECT_EQ(std::count(with.begin(), with.end(), "--posting-cost"), is_published) << mode.name;
  }
}

TEST(SweepModes, keep_no_prefixes_and_bound_the_slots) {
  SweepOptions o = small();
  for (const SweepMode& mode : all_modes()) {
    const auto d = mode.is_local ? local_command(o) : decode_command(mode, o);
    EXPECT_THAT(d, AllOf(Contains("--no-enable-prefix-caching"), Contains("8"))) << mode.name;
    if (mode.is_local) continue;
    EXPECT_THAT(prefill_command(mode, o), Contains("--no-enable-prefix-caching")) << mode.name;
  }
  o.max_num_seqs = 0;
  EXPECT_THAT(decode_command(*find_mode("push"), o), AllOf(Contains("1024"), Not(Contains("8"))));
}

std::string result(const SweepPoint& p, const std::string& more) {
  return R"({"num_prompts":)" + std::to_string(p.num_prompts) + R"(,"baton":{"schema":1,"seed":)" +
         std::to_string(p.seed) + R"(,"settings":)" + sweep_settings(small()).dump() + more + "}}";
}

// Of a point that counts, made by this bench, a server of build "s1" and a profile of hash "p1".
std::string made(const SweepPoint& p, const std::string& bench = serving::build_identity()) {
  return result(
      p, R"(,"void":null,"profile_hash":"p1","environment":{"versions":{"bench_build":")" + bench +
             R"(","server_build":"s1"}})");
}

SweepOptions making(const std::string& server, const std::string& profile) {
  SweepOptions o = small();
  o.server_build = server;
  o.profile_hash = profile;
  return o;
}

TEST(SweepResume, keeps_what_is_finished_and_counts) {
  const SweepOptions o = small();
  const SweepPoint p = points(o)[0];
  EXPECT_EQ(keep_result(made(p), p, o).value(), Kept::kYes);
  EXPECT_EQ(keep_result(result(p, R"(,"void":"the cores were the limit")"), p, o).value(),
            Kept::kNo);
  EXPECT_EQ(keep_result(R"({"num_prompts": 10, "baton": {"sch)", p, o).value(), Kept::kNo);
  EXPECT_EQ(keep_result(R"({"num_prompts": 10})", p, o).value(), Kept::kNo);
}

TEST(SweepResume, refuses_points_of_another_build_or_profile_naming_both_unless_told) {
  const SweepPoint p = points(small())[0];
  EXPECT_EQ(keep_result(made(p), p, making("s1", "p1")).value(), Kept::kYes);
  EXPECT_EQ(keep_result(made(p), p, making("", "")).value(), Kept::kYes) << "nobody could be asked";
  struct Case {
    std::string text;
    SweepOptions options;
    std::string words;
  };
  const std::string mine = serving::build_identity();
  for (Case& c : std::vector<Case>{
           {made(p, "b0"), small(), "bench_build \"b0\", and this sweep has \"" + mine + "\""},
           {made(p), making("s2", "p1"), R"(server_build "s1", and this sweep has "s2")"},
           {made(p), making("s1", "p2"), R"(profile_hash "p1", and this sweep has "p2")"},
           {result(p, R"(,"void":null)"), small(), "bench_build null, and this sweep has"}}) {
    const auto kept = keep_result(c.text, p, c.options);
    ASSERT_FALSE(kept) << c.words;
    EXPECT_THAT(kept.error().message, AllOf(HasSubstr(c.words), HasSubstr("--allow-other-build")));
    c.options.allow_other_build = true;
    EXPECT_EQ(keep_result(c.text, p, c.options).value(), Kept::kYes) << c.words;
  }
  EXPECT_EQ(keep_result(result(p, R"(,"void":"late")"), p, small()).value(), Kept::kNo)
      << "a void point is run again, whoever made it";
}

TEST(RunningPair, says_of_which_builds_and_profile_its_results_will_be) {
  RunningPair pair = emulated_pair();
  pair.prefill.build = pair.decode.build = "b1";
  for (auto* info : {&pair.prefill, &pair.decode}) info->emulation->profile_hash = "p1";
  EXPECT_EQ(adopt(pair, running()).server_build, "b1");
  EXPECT_EQ(adopt(pair, running()).profile_hash, "p1");
  pair.decode.build = "b2";
  EXPECT_EQ(adopt(pair, running()).server_build, "prefill b1, decode b2");
  EXPECT_EQ(contradiction(pair, "push", adopt(pair, running())), "");
  pair.decode.emulation->profile_hash = "p2";
  EXPECT_THAT(contradiction(pair, "push", adopt(pair, running())),
              HasSubstr("profile's numbers (hash): prefill says p1, and decode says p2"));
}

TEST(SweepResume, refuses_a_result_of_another_sweep_and_says_what_differs) {
  SweepOptions o = small();
  const SweepPoint p = points(o)[0];
  const std::string text = result(p, R"(,"void":null)");
  SweepPoint other = p;
  other.seed = 5;
  EXPECT_THAT(keep_result(text, other, o).error().message,
              AllOf(HasSubstr("seed " + std::to_string(p.seed)), HasSubstr("this sweep has 5")));
  o.first_token = "prefill";
  EXPECT_THAT(keep_result(text, p, o).error().message, HasSubstr("first_token \"decode\""));
  o = small();
  o.profile = "slow-link";
  EXPECT_THAT(keep_result(text, p, o).error().message, HasSubstr("slow-link"));
}

TEST(SweepResume, refuses_every_setting_that_differs_by_its_name) {
  const SweepPoint p = points(small())[0];
  const std::string text = result(p, R"(,"void":null)");
  const std::pair<const char*, std::function<void(SweepOptions&)>> table[] = {
      {"backend", [](auto& o) { o.backend = "cpu"; }},
      {"profile", [](auto& o) { o.profile = "other"; }},
      {"prefill", [](auto& o) { o.prefill = "cached"; }},
      {"first_token", [](auto& o) { o.first_token = "prefill"; }},
      {"max_num_seqs 8, and this sweep has 0", [](auto& o) { o.max_num_seqs = 0; }},
      {"posting_cost_us null, and this sweep has 0", [](auto& o) { o.posting_cost = 0; }},
      {"point_seconds", [](auto& o) { o.point_seconds = 11; }},
      {"num_warmups", [](auto& o) { o.num_warmups = 0; }},
      {"serve_flags", [](auto& o) { o.serve_flags = {"--threads", "1"}; }},
      {"goodput", [](auto& o) { o.goodput = {"ttft:200"}; }},
      {"request_timeout_s", [](auto& o) { o.request_timeout = 5; }}};
  for (const auto& [words, change] : table) {
    SweepOptions o = small();
    change(o);
    const auto kept = keep_result(text, p, o);
    ASSERT_FALSE(kept) << words;
    EXPECT_THAT(kept.error().message, HasSubstr(words));
  }
  std::string other = text;
  other.replace(other.find(R"("settings":{)"), std::string(R"("settings":{)").size(), R"("old":{)");
  EXPECT_THAT(keep_result(other, p, small()).error().message, HasSubstr("backend null"))
      << "of an older version, which did not say";
}

TEST(SweepVariant, of_real_compute_says_how_many_threads_an_instance_had) {
  SweepOptions o = small();
  o.backend = "cpu";
  o.serve_flags = {"--block-size", "16", "--threads", "1"};
  EXPECT_EQ(sweep_variant(o), "1 thread an instance");
  o.serve_flags = {"--threads=2"};
  EXPECT_EQ(sweep_variant(o), "2 threads an instance");
  RunningPair pair = emulated_pair();
  for (auto* info : {&pair.prefill, &pair.decode}) {
    info->emulated.clear();
    info->threads = 3;
  }
  EXPECT_EQ(sweep_variant(adopt(pair, running())), "3 threads an instance");
  pair.decode.threads = 1;
  EXPECT_EQ(sweep_variant(adopt(pair, running())), "prefill 3 threads, decode 1 thread");
  pair.decode.threads.reset();
  EXPECT_EQ(sweep_variant(adopt(pair, running())), "") << "one does not say";
}

TEST(SweepVariant, names_what_is_not_the_articles) {
  SweepOptions o = small();
  EXPECT_EQ(sweep_variant(o), "");
  o.max_num_seqs = 0;
  o.posting_cost = 0;
  EXPECT_EQ(sweep_variant(o), "no slot limit, posting cost 0 us");
  RunningPair pair = emulated_pair();
  EXPECT_EQ(sweep_variant(adopt(pair, running())), "");
  pair.decode.max_num_seqs = 1024;
  EXPECT_EQ(sweep_variant(adopt(pair, running())), "no slot limit");
}

}  // namespace
}  // namespace baton::bench
