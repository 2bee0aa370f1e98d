// One result file: what is read of it, and what is refused, by file and field.
#include "bench/plot/result_file.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "bench/plot/testing/results.h"

namespace baton::bench::plot {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::result_json;
using Json = nlohmann::json;

constexpr char kName[] = "push_qps8_in16384_out128_iter1.json";

Result<ResultFile> parse(const std::string& text, const std::string& name = kName,
                         std::size_t requests_max = 100) {
  return parse_result(name, *parse_file_name(name), text, requests_max);
}

Result<ResultFile> parse(const Json& json) {
  return parse(json.dump());
}

std::string message_of(const Json& json) {
  const auto result = parse(json);
  return result ? "" : result.error().message;
}

Json good() {
  return result_json("push", {8, 16384, 128, 1});
}

TEST(FileName, SaysTheGridPoint) {
  const auto name = parse_file_name("engine-loop-pull_qps0.5_in1024_out128_iter3.json");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->mode, "engine-loop-pull");
  EXPECT_EQ(name->at, (GridPoint{0.5, 1024, 128, 3}));
}

TEST(FileName, OfOtherFilesIsNone) {
  for (const char* name : {"plan.json", "push_qps8_in1_out1_iter1.log", "_qps8_in1_out1_iter1.json",
                           "push_qps8_in1_out1_iter.json", "push_qps8_in-1_out1_iter1.json",
                           "push_qps0_in1_out1_iter1.json", "push_qpsnan_in1_out1_iter1.json",
                           "push_qpsinf_in1_out1_iter1.json", "push_in1_qps8_out1_iter1.json",
                           "push_qps8_in99999999999999999999_out1_iter1.json", ""}) {
    EXPECT_FALSE(parse_file_name(name)) << name;
  }
}

TEST(ResultFile, HasEveryMetricWhereTheFileHasIt) {
  const auto result = parse(good());
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(result->values.at(Metric::kTtft, Stat::kMean), 100);
  EXPECT_EQ(result->values.at(Metric::kTtft, Stat::kP99), 190);
  EXPECT_EQ(result->values.at(Metric::kTpot, Stat::kMedian), 6);
  EXPECT_EQ(result->values.at(Metric::kSecondToken, Stat::kP90), 140);
  EXPECT_EQ(result->values.at(Metric::kGoodput, Stat::kMean), 7.5);
  EXPECT_EQ(result->values.at(Metric::kHandover, Stat::kMean), 20);
  EXPECT_EQ(result->void_reason, "");
  EXPECT_EQ(emulated_label(result->setting), "emulated: qwen3-32b-tp8-h200, bytes / 64");
}

TEST(ResultFile, OfVllmItselfIsReadWithoutBaton) {
  Json json = good();
  json.erase("baton");
  const auto result = parse(json);
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(result->values.at(Metric::kTtft, Stat::kMean), 100);
  EXPECT_FALSE(result->values.at(Metric::kHandover, Stat::kMean));
  EXPECT_EQ(result->requests_json, "[]");
}

TEST(ResultFile, OfVllmItselfWithFailedRequestsIsVoid) {
  Json json = good();
  json.erase("baton");
  json["num_prompts"] = 10;
  json["completed"] = 9;
  json["failed"] = 1;
  EXPECT_EQ(parse(json)->void_reason, "1 of 10 requests failed");
  json.erase("failed");
  EXPECT_EQ(parse(json)->void_reason, "1 of 10 requests failed");
  json["completed"] = 0;
  json["mean_ttft_ms"] = 0;
  EXPECT_EQ(parse(json)->void_reason, "10 of 10 requests failed");
  json.erase("num_prompts");
  EXPECT_EQ(parse(json)->void_reason, "no request was answered");
  json["completed"] = 9;
  EXPECT_EQ(parse(json)->void_reason, "");
}

TEST(ResultFile, WithoutAValueHasNoneAndNotZero) {
  Json json = good();
  json["mean_ttft_ms"] = nullptr;
  json["baton"]["second_token_ms"] = nullptr;
  const auto result = parse(json);
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_FALSE(result->values.at(Metric::kTtft, Stat::kMean));
  EXPECT_FALSE(result->values.at(Metric::kSecondToken, Stat::kMean));
}

TEST(ResultFile, IsVoidByItsOwnWordOrByItsBytes) {
  Json json = good();
  json["baton"]["void"] = "the cores were the limit";
  EXPECT_EQ(parse(json)->void_reason, "the cores were the limit");
  json["baton"]["void"] = nullptr;
  json["baton"]["bytes"]["moved"] = 5;
  EXPECT_EQ(parse(json)->void_reason, "bytes moved 5, expected 4096");
}

TEST(ResultFile, IsSaturatedByItsOwnWord) {
  Json json = good();
  EXPECT_FALSE(parse(json)->saturated) << "of an older version, which did not say";
  json["baton"]["saturated"] = nullptr;
  EXPECT_FALSE(parse(json)->saturated);
  json["baton"]["saturated"] = true;
  json["baton"]["arrivals"] = {{"offered_per_s", 8}, {"answered_per_s", 5}};
  EXPECT_TRUE(parse(json)->saturated);
  EXPECT_EQ(Json::parse(parse(json)->detail_json)["arrivals"]["answered_per_s"], 5);
}

TEST(ResultFile, HasEverySettingOfASweep) {
  EXPECT_EQ(parse(good())->setting.all.at("max_num_seqs"), "8");
  EXPECT_EQ(parse(good())->setting.all.at("serve_flags"), "[]");
  Json json = good();
  json["baton"]["settings"]["servers"] = {{"decode", {{"max_num_seqs", 8}}}};
  EXPECT_EQ(parse(json)->setting.all.at("servers.decode.max_num_seqs"), "8");
}

TEST(ResultFile, OfServersThatNobodyCouldAskSaysSo) {
  Json json = good();
  json["baton"]["first_token"] = nullptr;
  json["baton"]["prefill"] = nullptr;
  const auto result = parse(json);
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_FALSE(result->setting.first_token || result->setting.prefill);
}

TEST(ResultFile, SaysHowFullTheKvPoolsWere) {
  Json json = good();
  EXPECT_TRUE(Json::parse(parse(json)->detail_json)["kv_pool"]["decode"].is_null());
  json["baton"]["kv_pool"] = {{"prefill", nullptr},
                              {"decode", {{"blocks", 100}, {"most_used", 97}, {"full", true}}}};
  const Json pool = Json::parse(parse(json)->detail_json)["kv_pool"];
  EXPECT_EQ(pool["decode"]["most_used"], 97);
  EXPECT_EQ(pool["decode"]["full"], true);
  EXPECT_TRUE(pool["prefill"].is_null());
}

TEST(ResultFile, ThatIsForeignOrBrokenIsRefusedByFileAndField) {
  const auto broken = parse(std::string("{\"completed\": "));
  ASSERT_FALSE(broken);
  EXPECT_THAT(broken.error().message, AllOf(HasSubstr(kName), HasSubstr("not JSON")));
  EXPECT_THAT(parse(std::string("\xff\xfe")).error().message, HasSubstr("not JSON"));
  EXPECT_THAT(message_of(Json::array()), AllOf(HasSubstr(kName), HasSubstr("not an object")));
  EXPECT_THAT(message_of(Json::object()), HasSubstr("field completed is missing"));
  Json json = good();
  json.erase("mean_ttft_ms");
  EXPECT_THAT(message_of(json), HasSubstr("field mean_ttft_ms is missing"));
}

TEST(ResultFile, WithAFieldOfTheWrongKindIsRefusedByName) {
  const std::pair<const char*, Json> wrong[] = {
      {"/mean_ttft_ms", "fast"},
      {"/mean_ttft_ms", -1},
      {"/baton", 7},
      {"/baton/schema", 2},
      {"/baton/first_token", 1},
      {"/baton/emulated", "yes"},
      {"/baton/void", true},
      {"/baton/saturated", "yes"},
      {"/baton/settings", 3},
      {"/baton/handover_ms", Json::array()},
      {"/baton/handover_ms/wire", 3},
      {"/baton/handover_ms/wire/p99", "x"},
      {"/baton/bytes/moved", -4},
      {"/baton/slots/max", Json::object()},
      {"/baton/link/busy_share", "half"},
      {"/baton/requests", Json::object()},
      {"/baton/requests/0/id", Json::array()},
      {"/baton/requests/0/spans", 3},
      {"/baton/requests/0/spans/0/side", "gpu"},
      {"/baton/requests/0/spans/0/start_ms", nullptr},
      {"/baton/requests/0/spans/0/end_ms", "late"},
      {"/baton/requests/0/spans/0/end_ms", -9},
  };
  for (const auto& [where, value] : wrong) {
    Json json = good();
    json[Json::json_pointer(where)] = value;
    std::string field = where;
    field = field.substr(field.rfind('/') + 1);
    EXPECT_THAT(message_of(json), AllOf(HasSubstr(kName), HasSubstr(field))) << where;
  }
}

TEST(ResultFile, MustBeWhatItsNameSays) {
  const std::pair<const char*, Json> unlike[] = {
      {"mode", "pull"}, {"qps", 4}, {"input_len", 1024}, {"output_len", 1}, {"iteration", 2}};
  for (const auto& [field, value] : unlike) {
    Json json = good();
    json["baton"][field] = value;
    EXPECT_THAT(message_of(json), AllOf(HasSubstr(std::string("field baton.") + field),
                                        HasSubstr("the file's name says")));
  }
}

TEST(ResultFile, ThatIsEmulatedMustSayOfWhat) {
  for (const char* field : {"profile", "scale"}) {
    Json json = good();
    json["baton"][field] = nullptr;
    EXPECT_THAT(message_of(json), HasSubstr(field));
  }
}

TEST(ResultFile, NamesOfStrangersDoNotSteerTheTerminal) {
  const std::string name = "\x1b[2Jpush_qps8_in16384_out128_iter1.json";
  const auto result = parse_result(name, *parse_file_name(name), "{}", 1);
  EXPECT_THAT(result.error().message, HasSubstr("\\x1b[2Jpush"));
}

TEST(Requests, KeepFailuresAndTheEndsOfTheOrder) {
  Json json = good();
  Json& list = json["baton"]["requests"];
  for (int i = 1; i < 50; ++i) {
    list.push_back(list[0]);
    list.back()["ttft_ms"] = 100 + i;
  }
  list[20]["error"] = "deadline";
  const auto kept = Json::parse(parse(json.dump(), kName, 5)->requests_json);
  ASSERT_EQ(kept.size(), 5U);
  EXPECT_EQ(kept[0]["error"], "deadline");
  EXPECT_EQ(kept[1]["ttft"], 100);
  EXPECT_EQ(kept[4]["ttft"], 149);
}

TEST(Requests, MayHaveASpanThatNeverEnded) {
  Json json = good();
  json["baton"]["requests"][0]["spans"][0]["end_ms"] = nullptr;
  const auto result = parse(json);
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_TRUE(Json::parse(result->requests_json)[0]["spans"][0][3].is_null());
}

TEST(Requests, OfAnyNumberAndAnyBoundAreNoTrouble) {
  Json json = good();
  for (const std::size_t most : {0U, 1U, 2U, 1000U}) {
    const auto result = parse(json.dump(), kName, most);
    ASSERT_TRUE(result);
    EXPECT_EQ(Json::parse(result->requests_json).size(), std::min<std::size_t>(most, 1));
  }
  json["baton"]["requests"] = Json::array();
  EXPECT_EQ(parse(json)->requests_json, "[]");
}

}  // namespace
}  // namespace baton::bench::plot
