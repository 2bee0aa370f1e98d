#include "bench/plot/testing/results.h"

#include <fmt/format.h>

#include "base/check.h"

namespace baton::bench::plot::testing {
namespace {

using Json = nlohmann::json;

Json spread(double mean) {
  return {{"mean", mean}, {"p50", mean}, {"p90", mean * 1.4}, {"p99", mean * 1.9}};
}

void add_vllm(Json& out, const std::string& metric, double mean) {
  out["mean_" + metric + "_ms"] = mean;
  out["median_" + metric + "_ms"] = mean;
  out["p90_" + metric + "_ms"] = mean * 1.4;
  out["p99_" + metric + "_ms"] = mean * 1.9;
}

}  // namespace

Json result_json(const std::string& mode, const GridPoint& at) {
  Json out = {{"completed", 1}, {"failed", 0}, {"duration", 20.0}, {"num_prompts", 1}};
  add_vllm(out, "ttft", 100);
  add_vllm(out, "tpot", 6);
  const Json span = {{"side", "prefill"}, {"name", "wire"}, {"start_ms", -0.5}, {"end_ms", 2.0}};
  out["baton"] = {
      {"schema", 1},
      {"mode", mode},
      {"qps", at.qps},
      {"input_len", at.input_len},
      {"output_len", at.output_len},
      {"iteration", at.iteration},
      {"seed", 7},
      {"first_token", "decode"},
      {"prefill", "computed"},
      {"emulated", true},
      {"profile", "qwen3-32b-tp8-h200"},
      {"scale", 64},
      {"settings",
       {{"max_num_seqs", 8}, {"num_warmups", 2}, {"serve_flags", nlohmann::json::array()}}},
      {"void", nullptr},
      {"second_token_ms", spread(100)},
      {"handover_ms", {{"wire", spread(5)}, {"total", spread(20)}}},
      {"goodput", {{"slo", {{"ttft", 1000}}}, {"requests_per_s", 7.5}}},
      {"bytes", {{"moved", 4096}, {"expected", 4096}}},
      {"slots", {{"max", 8}, {"mean", 3.5}, {"p99", 8}}},
      {"link", {{"rate_bytes_per_s", nullptr}, {"busy_share", 0.3}}},
      {"requests",
       {{{"id", "r1"}, {"arrival_ms", 0}, {"ttft_ms", 100}, {"spans", Json::array({span})}}}}};
  return out;
}

ResultFile result_file(const std::string& mode, const GridPoint& at) {
  const std::string name = fmt::format("{}_qps{}_in{}_out{}_iter{}.json", mode, at.qps,
                                       at.input_len, at.output_len, at.iteration);
  auto result = parse_result(name, *parse_file_name(name), result_json(mode, at).dump(), 10);
  BATON_CHECK(result.has_value());
  return std::move(*result);
}

}  // namespace baton::bench::plot::testing
