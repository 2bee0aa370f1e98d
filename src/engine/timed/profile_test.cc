#include "engine/timed/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace baton::engine::timed {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

std::filesystem::path folder() {
  return std::filesystem::path(BATON_SOURCE_DIR) / "profiles";
}

Json published() {
  std::ifstream file(folder() / "qwen3-32b-tp8-h200.json");
  return Json::parse(file);
}

std::string refusal(const Json& file) {
  const auto profile = parse_profile(file.dump());
  return profile ? "accepted" : profile.error().message;
}

TEST(Profiles, ThoseInTheTreeAreSoundAndNamedAsTheirFiles) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    const auto profile = find_profile(entry.path().string());
    ASSERT_TRUE(profile) << profile.error().message;
    EXPECT_EQ(profile->name + ".json", entry.path().filename().string());
    ++count;
  }
  EXPECT_GE(count, 4U);
}

TEST(Profiles, ThePublishedOneHasThePublishedShape) {
  const Profile profile = parse_profile(published().dump()).value();
  EXPECT_EQ(token_bytes(profile), 256U);
  // 32 KiB a token and rank; 512 MiB for 16k.
  const std::uint64_t token =
      std::uint64_t{token_bytes(profile)} * profile.num_layers * profile.kv_regions_per_layer;
  EXPECT_EQ(token, 32U << 10U);
  EXPECT_EQ(token * (16U << 10U), 512U << 20U);
}

TEST(Profiles, AreTheSameByTheirNumbersAndNotByTheirWords) {
  const std::string hash = hash_of(parse_profile(published().dump()).value());
  EXPECT_EQ(hash.size(), 16U);
  Json file = published();
  file["description"] = "other words";
  file["sources"]["decode_step_s"] = "other words";
  EXPECT_EQ(hash_of(parse_profile(file.dump()).value()), hash);
  const Json whole = published();
  for (const auto& [key, value] : whole.items()) {
    if (!value.is_number()) continue;
    file = published();
    const bool is_halved =
        key == "kv_regions_per_layer" || key == "kv_bytes_scale";  // at their most
    file[key] = value.get<double>() * (is_halved ? 0.5 : 2);
    const auto other = parse_profile(file.dump());
    ASSERT_TRUE(other) << key << ": " << other.error().message;
    EXPECT_NE(hash_of(*other), hash) << key;
  }
}

TEST(Profiles, EveryNumberNeedsItsSource) {
  const Json whole = published();
  for (const auto& [key, value] : whole.items()) {
    if (!value.is_number()) continue;
    Json file = published();
    file["sources"].erase(key);
    EXPECT_THAT(refusal(file), HasSubstr(key + " has no source")) << key;
    file["sources"][key] = "";
    EXPECT_THAT(refusal(file), HasSubstr(key + " has no source")) << key;
    file = published();
    file.erase(key);
    EXPECT_THAT(refusal(file), HasSubstr(key + " must be")) << key;
    file[key] = -1;
    EXPECT_THAT(refusal(file), HasSubstr(key + " must be")) << key;
    EXPECT_THAT(refusal(file), HasSubstr("and is -1")) << key;
  }
}

TEST(Profiles, NameEveryFault) {
  const auto spoilt = [](const std::function<void(Json&)>& spoil) {
    Json file = published();
    spoil(file);
    return refusal(file);
  };
  EXPECT_THAT(spoilt([](Json& f) { f["prefil_tokens_per_s"] = 1; }),
              HasSubstr("prefil_tokens_per_s is no field"));
  EXPECT_THAT(spoilt([](Json& f) { f["sources"]["speed"] = "a guess"; }),
              HasSubstr("sources.speed is the source of no number"));
  EXPECT_THAT(spoilt([](Json& f) { f["num_layers"] = "64"; }), HasSubstr("and is \"64\""));
  EXPECT_THAT(spoilt([](Json& f) { f["num_layers"] = 1.5; }),
              HasSubstr("num_layers must be an integer"));
  EXPECT_THAT(spoilt([](Json& f) { f["decode_step_s"] = 1e9; }), HasSubstr("decode_step_s"));
  EXPECT_THAT(spoilt([](Json& f) { f["name"] = ""; }), HasSubstr("name must be a text"));
  EXPECT_THAT(spoilt([](Json& f) { f["sources"] = 3; }), HasSubstr("sources must be an object"));
  EXPECT_THAT(spoilt([](Json& f) { f["kv_bytes_scale"] = 64; }),
              HasSubstr("kv_bytes_scale is 64, and must divide the 256 bytes"));
  EXPECT_THAT(spoilt([](Json& f) { f["max_num_batched_tokens"] = 4; }),
              HasSubstr("max_num_batched_tokens 4 is smaller than max_num_seqs 8"));
  EXPECT_THAT(spoilt([](Json& f) { f["name"] = "a\nb"; }), HasSubstr("and is \"a\\nb\""));
  EXPECT_THAT(spoilt([](Json& f) { f["model"] = std::string(201, 'm'); }),
              HasSubstr("model must be a text of 1 to 200 bytes"));
  EXPECT_THAT(spoilt([](Json& f) { f["num_kv_heads"] = 12; }),
              HasSubstr("num_kv_heads 12 and tensor_parallel_size 8 do not divide"));
  EXPECT_THAT(parse_profile("{").error().message, HasSubstr("not JSON"));
  EXPECT_THAT(parse_profile("{\n\"decode_step_s\": NaN}").error().message,
              HasSubstr("at line 2, column 18"));
  EXPECT_THAT(parse_profile(R"({"decode_step_s": 1e999})").error().message, HasSubstr("1e999"));
  EXPECT_THAT(parse_profile("[1]").error().message, HasSubstr("is an object, not [1]"));
}

TEST(Profiles, AKeyThatIsThereTwiceIsRefused) {
  const std::string text = published().dump();
  const std::string again = R"({"decode_step_s": 0, )" + text.substr(1);
  EXPECT_THAT(parse_profile(again).error().message, HasSubstr("\"decode_step_s\" is there twice"));
  // As a source and as a number it is not.
  EXPECT_TRUE(parse_profile(text));
}

TEST(Profiles, AChangedCopyMayNotBearTheNameOfWhatItWas) {
  const std::filesystem::path copy =
      std::filesystem::path(::testing::TempDir()) / "baton-changed-profile.json";
  std::ofstream(copy) << published().dump();
  const auto refused = find_profile(copy.string());
  Json renamed = published();
  renamed["name"] = "baton-changed-profile";
  std::ofstream(copy) << renamed.dump();
  const auto taken = find_profile(copy.string());
  std::filesystem::remove(copy);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("name must be the file's, baton-changed-profile, "
                                                 "and is qwen3-32b-tp8-h200"));
  EXPECT_TRUE(taken);
}

TEST(Profiles, AreFoundByName) {
  ::setenv("BATON_PROFILES", folder().c_str(), 1);
  EXPECT_EQ(find_profile("deepseek-v3-tp8-h200").value().num_layers, 61U);
  const auto missing = find_profile("no-such");
  ::unsetenv("BATON_PROFILES");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Errc::kNotFound);
  EXPECT_THAT(missing.error().message, HasSubstr("no-such.json"));
}

}  // namespace
}  // namespace baton::engine::timed
