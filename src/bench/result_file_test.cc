#include "bench/result_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "bench/baton_key.h"
#include "bench/machine.h"
#include "serving/json.h"

namespace baton::bench {
namespace {

using serving::Json;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr std::int64_t kMilli = 1'000'000;

// One request: sent at 10 ms, tokens at 110, 120 and 140 ms, handed over as transfer "aa".
BenchRun one_request() {
  BenchRun run;
  run.load.start = Time(Duration(1000 * kMilli));
  run.load.duration = std::chrono::seconds(2);
  run.load.most_open = 1;
  RequestResult r;
  r.ok = true;
  r.due = r.sent = milliseconds(10);
  r.first = milliseconds(110);
  r.second = milliseconds(120);
  r.last = milliseconds(140);
  r.gaps = {0.010, 0.020};
  r.input_len = 32;
  r.output_len = 3;
  r.is_counted = true;
  r.request_id = "bench-0";
  r.transfer_id = "aa";
  run.load.results = {r};
  Handover h;
  h.has_prefill = h.has_decode = true;
  h.has_router = true;
  h.router.decode_first_token = h.router.first_byte = 1108 * kMilli;
  h.prefill.submitted = 1014 * kMilli;
  h.prefill.first_step = 1020 * kMilli;
  h.prefill.computed = h.prefill.ready = 1080 * kMilli;
  h.prefill.registered = 1030 * kMilli;
  h.prefill.first_write = h.prefill.last_write = 1081 * kMilli;
  h.prefill.last_byte = 1090 * kMilli;
  h.prefill.told = 1091 * kMilli;
  h.prefill.bytes = 200;
  h.decode.last_byte = 1090 * kMilli;
  h.decode.told = 1091 * kMilli;
  h.decode.first_step = 1092 * kMilli;
  h.decode.last_token = h.decode.ended = 1140 * kMilli;
  h.decode.bytes_planned = 200;
  h.decode.blocks = 2;
  h.decode.prompt_tokens = 32;
  h.writes = 4;
  h.fabric = "shm";
  run.records.by_transfer["aa"] = h;
  InstanceFacts decode;
  decode.mode = "push";
  decode.block_size = 16;
  run.records.decode = {decode};
  run.slo = parse_goodput(std::vector<std::string>{"ttft:150"}).value();
  run.metrics = measure(run.load.results, run.slo);
  run.model_id = "small";
  run.date = "20261130-090000";
  run.cpu_busy_share = 0.5;
  return run;
}

Json result_of(const BenchRun& run, BenchOptions o = {}) {
  o.request_rate = 4;
  PointInfo point = point_of(o, run);
  point.void_reason = void_reason(point, o, run);
  return serving::parse_json(result_json(point, o, run)).value();
}

std::string void_of(const BenchRun& run, bool emulated = false) {
  PointInfo point;
  point.emulated = emulated;
  return void_reason(point, {}, run);
}

// What the article's plotting script, and anybody's, reads.
TEST(ResultFile, has_the_keys_of_vllm_bench_serve) {
  const Json result = result_of(one_request());
  for (const char* metric : {"ttft", "tpot", "itl", "e2el"}) {
    for (const char* what : {"mean", "median", "std", "p50", "p90", "p99"}) {
      const std::string key = std::string(what) + "_" + metric + "_ms";
      ASSERT_TRUE(result.contains(key)) << key;
      EXPECT_TRUE(result[key].is_number()) << key;
    }
  }
  EXPECT_DOUBLE_EQ(result["mean_ttft_ms"], 100);
  EXPECT_DOUBLE_EQ(result["median_tpot_ms"], 15);
  EXPECT_DOUBLE_EQ(result["mean_itl_ms"], 15);
  EXPECT_DOUBLE_EQ(result["p99_e2el_ms"], 130);
  for (const char* key : {"date",
                          "endpoint_type",
                          "backend",
                          "label",
                          "model_id",
                          "tokenizer_id",
                          "num_prompts",
                          "request_rate",
                          "burstiness",
                          "max_concurrency",
                          "duration",
                          "completed",
                          "failed",
                          "total_input_tokens",
                          "total_output_tokens",
                          "request_throughput",
                          "request_goodput",
                          "output_throughput",
                          "total_token_throughput",
                          "max_output_tokens_per_s",
                          "max_concurrent_requests"}) {
    EXPECT_TRUE(result.contains(key)) << key;
  }
  EXPECT_DOUBLE_EQ(result["output_throughput"], 1.5);
  EXPECT_DOUBLE_EQ(result["request_goodput"], 0.5);
  EXPECT_FALSE(result.contains("ttfts")) << "only with --save-detailed";
}

TEST(ResultFile, has_every_requests_figures_where_that_is_asked_for) {
  BenchOptions o;
  o.save_detailed = true;
  o.metadata = {"tensor_parallel=8"};
  const Json result = result_of(one_request(), o);
  EXPECT_EQ(result["input_lens"], Json::array({32}));
  EXPECT_EQ(result["output_lens"], Json::array({3}));
  EXPECT_DOUBLE_EQ(result["ttfts"][0], 0.1);
  EXPECT_DOUBLE_EQ(result["itls"][0][1], 0.02);
  EXPECT_EQ(result["errors"], Json::array({""}));
  EXPECT_DOUBLE_EQ(result["start_times"][0], 1.01);
  EXPECT_DOUBLE_EQ(result["latencies"][0], 0.13);
  EXPECT_DOUBLE_EQ(result["queue_times"][0], 0);
  EXPECT_EQ(result["tensor_parallel"], "8");
}

TEST(ResultFile, says_below_its_own_key_how_the_hand_over_went) {
  const Json baton = result_of(one_request())["baton"];
  EXPECT_EQ(baton["schema"], 1);
  EXPECT_EQ(baton["mode"], "push");
  EXPECT_EQ(baton["void"], nullptr);
  EXPECT_EQ(baton["label"], "");
  EXPECT_DOUBLE_EQ(baton["second_token_ms"]["median"], 110);
  EXPECT_DOUBLE_EQ(baton["handover_ms"]["wire"]["p50"], 9);
  EXPECT_DOUBLE_EQ(baton["handover_ms"]["total"]["p99"], 12);
  EXPECT_DOUBLE_EQ(baton["handover_ms"]["front_end"]["mean"], 4);
  EXPECT_DOUBLE_EQ(baton["handover_ms"]["first_token"]["mean"], 18);
  EXPECT_FALSE(baton["handover_ms"].contains("queue")) << "nobody recorded it";
  EXPECT_DOUBLE_EQ(baton["block_hold_ms"]["mean"], 11);
  EXPECT_EQ(baton["bytes"]["moved"], 200);
  EXPECT_EQ(baton["bytes"]["expected"], 200);
  EXPECT_EQ(baton["writes"], 4);
  EXPECT_EQ(baton["runs"], nullptr);
  EXPECT_EQ(baton["slots"]["max"], 1);
  EXPECT_DOUBLE_EQ(baton["slots"]["mean"], 0.024);
  EXPECT_DOUBLE_EQ(baton["compute"]["prefill_busy_share"], 0.03);
  EXPECT_DOUBLE_EQ(baton["machine"]["cpu_busy_share"], 0.5);
  EXPECT_EQ(baton["environment"]["fabric"], "shm");
  EXPECT_EQ(baton["requests"][0]["id"], "aa");
  EXPECT_DOUBLE_EQ(baton["requests"][0]["arrival_ms"], 10);
  const Json& wire = baton["requests"][0]["spans"][5];
  EXPECT_EQ(wire["name"], "wire");
  EXPECT_DOUBLE_EQ(wire["start_ms"], 81);
}

// One process that does both: nothing is known of a hand-over, and nothing is 0.
TEST(ResultFile, has_null_for_what_did_not_happen) {
  BenchRun run = one_request();
  run.load.results[0].transfer_id.clear();
  run.records = {};
  const Json baton = result_of(run)["baton"];
  EXPECT_EQ(baton["handover_ms"], Json::object());
  EXPECT_EQ(baton["block_hold_ms"]["mean"], nullptr);
  EXPECT_EQ(baton["bytes"]["moved"], nullptr);
  EXPECT_EQ(baton["slots"]["max"], nullptr);
  EXPECT_EQ(baton["link"]["busy_share"], nullptr);
  EXPECT_EQ(baton["void"], nullptr);
}

TEST(ResultFile, a_point_whose_bytes_are_not_the_full_prompts_is_void_and_says_both) {
  BenchRun run = one_request();
  run.records.by_transfer["aa"].decode.blocks = 1;
  run.records.by_transfer["aa"].decode.bytes_planned = 100;
  run.records.by_transfer["aa"].prefill.bytes = 100;
  EXPECT_EQ(void_of(run), "bytes moved 100, and the full prompts have 200");
  EXPECT_THAT(result_of(run)["baton"]["void"].get<std::string>(), HasSubstr("full prompts"));
}

TEST(ResultFile, a_hand_over_that_moved_too_much_makes_up_for_none_that_moved_too_little) {
  BenchRun run = one_request();
  run.load.results.push_back(run.load.results[0]);
  run.load.results[1].transfer_id = "bb";
  run.records.by_transfer["bb"] = run.records.by_transfer["aa"];
  EXPECT_EQ(void_of(run), "");
  run.records.by_transfer["aa"].prefill.bytes = 300;
  run.records.by_transfer["bb"].prefill.bytes = 100;
  EXPECT_EQ(void_of(run),
            "bytes moved 400, and the full prompts have 400, but 2 hand-overs did not move their "
            "own");
  run = one_request();
  Handover& none = run.records.by_transfer["aa"];
  none.decode.blocks = none.decode.bytes_planned = none.prefill.bytes = 0;
  EXPECT_THAT(void_of(run), HasSubstr("1 hand-overs did not move")) << "nothing was to be moved";
}

TEST(ResultFile, a_point_of_a_mode_that_hands_over_is_void_where_an_answer_came_without) {
  BenchRun run = one_request();
  PointInfo point;
  point.hands_over = true;
  EXPECT_EQ(void_reason(point, {}, run), "");
  run.records.decode[0].block_size.reset();
  EXPECT_THAT(void_reason(point, {}, run), HasSubstr("nobody says how many bytes"));
  run = one_request();
  run.load.results[0].transfer_id.clear();
  EXPECT_EQ(void_reason(point, {}, run), "1 of 1 answers came without a hand-over");
  EXPECT_EQ(void_of(run), "") << "of one process, or a server that is none of ours";
}

TEST(ResultFile, a_point_whose_prompts_p_remembered_is_void_where_they_were_to_be_computed) {
  BenchRun run = one_request();
  run.records.by_transfer["aa"].prefill.cached_tokens = 16;
  PointInfo point;
  EXPECT_EQ(void_reason(point, {}, run), "") << "nobody said that they were to be computed";
  point.prefill = "cached";
  EXPECT_EQ(void_reason(point, {}, run), "");
  point.prefill = "computed";
  EXPECT_THAT(void_reason(point, {}, run), HasSubstr("P found 16 prompt tokens"));
}

TEST(ResultFile, a_point_whose_d_remembered_prompts_says_so_where_bytes_are_short) {
  BenchRun run = one_request();
  run.records.by_transfer["aa"].decode.cached_tokens = 16;
  run.records.by_transfer["aa"].prefill.bytes = 100;
  EXPECT_EQ(void_of(run),
            "bytes moved 100, and the full prompts have 200: D found 16 prompt tokens in its "
            "prefix cache");
}

TEST(ResultFile, says_how_full_the_kv_pools_were) {
  BenchRun run = one_request();
  EXPECT_EQ(result_of(run)["baton"]["kv_pool"]["decode"], nullptr) << "nobody said";
  run.decode_pool = PoolUse{100, 97, 16};   // 35 tokens need three blocks
  run.prefill_pool = PoolUse{100, 99, 16};  // and a prompt two
  const Json pool = result_of(run)["baton"]["kv_pool"];
  EXPECT_EQ(pool["decode"]["blocks"], 100);
  EXPECT_EQ(pool["decode"]["most_used"], 97);
  EXPECT_EQ(pool["decode"]["full"], false);
  EXPECT_EQ(pool["prefill"]["full"], true);
}

TEST(ResultFile, a_point_without_records_or_answers_is_void) {
  BenchRun run = one_request();
  run.records.by_transfer.clear();
  EXPECT_THAT(void_of(run), HasSubstr("1 of 1 hand-overs have no record"));
  run.load.results[0].ok = false;
  run.metrics = measure(run.load.results, {});
  EXPECT_THAT(void_of(run), HasSubstr("1 of 1 requests failed"));
  run.load.results.clear();
  EXPECT_EQ(void_of(run), "no request was sent");
}

TEST(ResultFile, a_point_with_one_failed_request_is_void_and_says_how_many_and_why) {
  BenchRun run = one_request();
  RequestResult failed = run.load.results[0];
  failed.ok = false;
  failed.transfer_id.clear();
  failed.cause = "http_503";
  failed.error = "no instance is up";
  run.load.results.push_back(failed);
  failed.cause = "refused";
  run.records = {};  // whoever is gone has none
  run.load.results.push_back(failed);
  run.metrics = measure(run.load.results, {});
  EXPECT_EQ(void_of(run), "2 of 3 requests failed; the first: http_503: no instance is up");
}

TEST(ResultFile, a_point_with_a_short_answer_is_void_and_says_both_lengths) {
  BenchRun run = one_request();
  run.load.results[0].asked_len = 3;
  EXPECT_EQ(void_of(run), "");
  run.load.results[0].asked_len = 4;
  EXPECT_EQ(void_of(run),
            "1 of 1 answers have another length than was asked for; the first: 3 tokens instead of "
            "4");
  run.load.results[0].is_counted = false;
  EXPECT_EQ(void_of(run), "") << "an event of the stream may have been two tokens";
}

TEST(ResultFile, records_the_flags_without_the_values_of_headers) {
  BenchOptions o;
  o.as_typed = {"bench", "--header", "Authorization=Bearer s", "X=t", "--seed=7", "--header=A=u"};
  EXPECT_EQ(result_of(one_request(), o)["baton"]["environment"]["flags"]["bench"],
            Json::array(
                {"bench", "--header", "Authorization=...", "X=...", "--seed=7", "--header=A=..."}));
}

TEST(ResultFile, tells_of_the_metrics_that_were_asked_for) {
  BenchOptions o;
  o.percentile_metrics = "tpot";
  const std::string table = result_table({}, o, one_request());
  EXPECT_THAT(table, HasSubstr("Mean TPOT"));
  EXPECT_THAT(table, ::testing::Not(HasSubstr("Mean TTFT")));
}

TEST(ResultFile, says_before_the_load_that_it_cannot_be_written) {
  BenchOptions o;
  o.result_dir = ::testing::TempDir() + "new-results";
  EXPECT_TRUE(check_result_dir(o).has_value());
  o.result_dir = "/proc/nowhere";
  EXPECT_THAT(check_result_dir(o).error().message, HasSubstr("/proc/nowhere"));
}

TEST(ResultFile, says_whether_the_servers_kept_up) {
  BenchRun run = one_request();
  EXPECT_EQ(result_of(run)["baton"]["saturated"], nullptr) << "one request says nothing";
  RequestResult r = run.load.results[0];
  r.transfer_id.clear();
  run.load.results.clear();
  for (int i = 0; i < 16; ++i) {
    r.sent = r.due = milliseconds(100) * i;
    r.first = r.sent + milliseconds(50);
    r.second = r.sent + milliseconds(60);
    r.last = r.sent + milliseconds(500);
    run.load.results.push_back(r);
  }
  run.metrics = measure(run.load.results, {});
  EXPECT_EQ(result_of(run)["baton"]["saturated"], false);
  for (int i = 0; i < 16; ++i) {
    RequestResult& late = run.load.results[static_cast<std::size_t>(i)];
    *late.second += milliseconds(100) * i;
    *late.last += milliseconds(100) * i;
  }
  const Json baton = result_of(run)["baton"];
  EXPECT_EQ(baton["saturated"], true);
  EXPECT_DOUBLE_EQ(baton["arrivals"]["offered_per_s"], 10);
  EXPECT_DOUBLE_EQ(baton["arrivals"]["answered_per_s"], 5);
  EXPECT_EQ(baton["arrivals"]["open_at_last_arrival"], 9);
}

TEST(ResultFile, names_the_machine_it_knows_as_the_drivers) {
  BenchOptions o;
  o.base_url = "http://127.0.0.1:8000";
  const Json here = result_of(one_request(), o)["baton"]["environment"];
  EXPECT_TRUE(here["driver"]["cores"].is_number());
  EXPECT_EQ(here["servers"], "on the driver's host");
  o.decode_url = "http://10.0.0.2:8200";
  EXPECT_EQ(result_of(one_request(), o)["baton"]["environment"]["servers"], "elsewhere");
  BenchRun run = one_request();
  run.cpu_busy_share = 0.95;
  EXPECT_THAT(result_of(run, o)["baton"]["void"].get<std::string>(),
              HasSubstr("the driver's cores were the limit"));
}

TEST(ResultFile, names_host_and_build_of_each_server_by_its_own_word) {
  BenchRun run = one_request();
  for (const auto& [side, host] : {std::pair{"prefill", "p-host"}, {"decode", "d-host"}}) {
    ServerSaid said;
    said.side = side;
    said.url = std::string("http://") + host + ":8100";
    said.info.host = {host, "6.1.0", "some cpu", 192};
    said.info.build = "b1";
    said.info.fabric = "libfabric";
    said.info.fabric_provider = "efa";
    said.info.libfabric_version = "2.1";
    run.servers.push_back(said);
  }
  run.servers[0].info.emulation.emplace().profile_hash = "f00d";
  Json baton = result_of(run)["baton"];
  EXPECT_EQ(baton["profile_hash"], "f00d");
  const Json instances = baton["environment"]["instances"];
  ASSERT_EQ(instances.size(), 2U);
  EXPECT_EQ(instances[0]["host"], "p-host");
  EXPECT_EQ(instances[1]["side"], "decode");
  EXPECT_EQ(instances[1]["host"], "d-host");
  EXPECT_EQ(instances[1]["kernel"], "6.1.0");
  EXPECT_EQ(instances[1]["cpu"], "some cpu");
  EXPECT_EQ(instances[1]["cores"], 192);
  EXPECT_EQ(instances[1]["libfabric"], "2.1");
  EXPECT_EQ(instances[1]["provider"], "efa");
  EXPECT_EQ(baton["environment"]["versions"]["server_build"], "b1");
  EXPECT_NE(baton["environment"]["versions"]["bench_build"], nullptr);
  run.servers[1].info.build = "b2";
  EXPECT_EQ(result_of(run)["baton"]["environment"]["versions"]["server_build"],
            "prefill b1, decode b2");
  EXPECT_EQ(result_of(one_request())["baton"]["environment"]["versions"]["server_build"], nullptr)
      << "of servers that do not say";
}

TEST(ResultFile, a_point_is_void_where_the_cores_were_the_limit_emulated_or_not) {
  BenchRun run = one_request();
  run.cpu_busy_share = 0.95;
  EXPECT_THAT(void_of(run, false),
              HasSubstr("95 % busy, and a point that counts has at most 90 %"));
  EXPECT_EQ(void_of(run, true), void_of(run, false)) << "one rule for all";
  run.cpu_busy_share = 0.89;
  EXPECT_EQ(void_of(run, false), "");
  EXPECT_THAT(void_of(run, true), HasSubstr("did not say")) << "nobody knows";
  run.counters.step_time = 1;
  EXPECT_EQ(void_of(run, true), "");
  run.counters.overrun_time = 1;
  EXPECT_THAT(void_of(run, true), HasSubstr("1.00 s longer"));
  EXPECT_EQ(void_of(run, false), "") << "nothing is emulated";
}

TEST(ResultFile, a_point_is_void_where_a_quota_stopped_what_ran) {
  BenchRun run = one_request();
  run.cpu_throttled_s = 0.019;
  EXPECT_EQ(void_of(run), "");
  run.cpu_throttled_s = 0.021;
  EXPECT_THAT(void_of(run), HasSubstr("quota of this control group held back 0.02 CPU seconds"));
  EXPECT_DOUBLE_EQ(result_of(run)["baton"]["machine"]["cpu_throttled_s"], 0.021);
}

TEST(ResultFile, an_emulated_point_carries_the_word_the_profile_and_the_factor) {
  BenchRun run = one_request();
  run.counters.profile = "qwen3-32b-tp8-h200";
  run.counters.scale = 64;
  const Json baton = result_of(run)["baton"];
  EXPECT_EQ(baton["label"], "emulated: qwen3-32b-tp8-h200, bytes / 64");
  EXPECT_EQ(baton["emulated"], true);
}

TEST(ResultFile, is_named_as_vllm_names_it) {
  BenchOptions o;
  o.result_dir = "d";
  o.request_rate = 4;
  BenchRun run = one_request();
  run.model_id = "org/small";
  EXPECT_EQ(result_path(o, run), "d/openai-4qps-small-20261130-090000.json");
  o.label = "x";
  o.max_concurrency = 2;
  EXPECT_EQ(result_path(o, run), "d/x-4qps-concurrency2-small-20261130-090000.json");
  o.result_filename = "r.json";
  EXPECT_EQ(result_path(o, run), "d/r.json");
}

TEST(ResultFile, is_there_whole_or_not_at_all) {
  const std::string dir = ::testing::TempDir() + "results/deep";
  ASSERT_TRUE(write_file(dir + "/a.json", "{}").has_value());
  std::ifstream file(dir + "/a.json");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "{}");
  EXPECT_FALSE(std::ifstream(dir + "/a.json.part").is_open());
  EXPECT_THAT(write_file("/proc/nowhere/a.json", "{}").error().message,
              HasSubstr("/proc/nowhere/a.json"));
}

TEST(Machine, reads_how_busy_the_cores_were) {
  const auto before = parse_proc_stat("cpu  100 0 100 700 50 0 0 50 0 0\ncpu0 1 2\n").value();
  const auto after = parse_proc_stat("cpu  150 0 100 750 50 0 0 50 0 0\n").value();
  EXPECT_DOUBLE_EQ(busy_share(before, after).value(), 0.5);
  EXPECT_FALSE(busy_share(after, after).has_value());
  EXPECT_FALSE(parse_proc_stat("intr 5").has_value());
  EXPECT_FALSE(parse_proc_stat("cpu 5 6").has_value());
}

TEST(Machine, reads_of_the_cores_that_it_may_use_alone) {
  constexpr char kPage[] =
      "cpu  300 0 0 700 0 0 0 0\ncpu0 100 0 0 0 0 0 0 0\ncpu1 50 0 0 50 0 0 0 0\n"
      "cpu10 150 0 0 650 0 0 0 0\nintr 5\n";
  EXPECT_EQ(parse_proc_stat(kPage, {0, 1}).value().busy, 150U);
  EXPECT_EQ(parse_proc_stat(kPage, {0, 1}).value().total, 200U);
  EXPECT_EQ(parse_proc_stat(kPage, {10}).value().total, 800U);
  EXPECT_EQ(parse_proc_stat(kPage).value().total, 1000U);
  EXPECT_EQ(parse_proc_stat(kPage, {7}).value().total, 1000U) << "numbered anew";
  EXPECT_TRUE(cpu_ticks().has_value());
}

void put(const std::string& path, const std::string& text) {
  ASSERT_TRUE(write_file(path, text).has_value());
}

TEST(Machine, reads_how_long_a_quota_stopped_this_group_and_those_above) {
  EXPECT_DOUBLE_EQ(
      parse_throttled("usage_usec 7\nnr_throttled 3\nthrottled_usec 1500000\n").value(), 1.5);
  EXPECT_DOUBLE_EQ(parse_throttled("nr_periods 4\nthrottled_time 2500000000\n").value(), 2.5);
  EXPECT_FALSE(parse_throttled("usage_usec 7\n").has_value()) << "no quota can be set there";
  const std::string root = ::testing::TempDir() + "cgroup";
  put(root + "/cpu.stat", "usage_usec 9\n");
  put(root + "/a/cpu.stat", "throttled_usec 2000000\n");
  put(root + "/a/b/cpu.stat", "throttled_usec 500000\n");
  put(root + "/cpu/cpu.stat", "throttled_time 4000000000\n");
  EXPECT_DOUBLE_EQ(throttled_seconds("0::/a/b\n", root).value(), 2.5);
  EXPECT_DOUBLE_EQ(throttled_seconds("0::/a\n", root).value(), 2);
  EXPECT_FALSE(throttled_seconds("0::/\n", root).has_value());
  EXPECT_DOUBLE_EQ(
      throttled_seconds("9:memory:/a\n4:cpu,cpuacct:/docker/c0ffee\n0::/\n", root).value(), 4)
      << "a container of version 1 sees its own group as the root";
  EXPECT_FALSE(throttled_seconds("", root).has_value());
  EXPECT_FALSE(throttled_seconds("no line of it", root).has_value());
}

}  // namespace
}  // namespace baton::bench
