// Folders: what is read of them, and which comparisons are refused.
#include "bench/plot/result_set.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "bench/plot/testing/results.h"

namespace baton::bench::plot {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::result_file;
using testing::result_json;

ResultSet set_of(const std::string& label, const std::vector<std::string>& modes,
                 const std::vector<GridPoint>& grid) {
  ResultSet set{label, modes, {}};
  for (const std::string& mode : modes) {
    for (const GridPoint& at : grid) set.results.push_back(result_file(mode, at));
  }
  return set;
}

const std::vector<GridPoint> kGrid = {
    {1, 1024, 128, 1}, {1, 2048, 128, 1}, {8, 1024, 128, 1}, {8, 2048, 128, 1}};

TEST(Comparable, ModesOfOneGridAre) {
  EXPECT_TRUE(check_comparable(set_of("a", {"pull", "push"}, kGrid)));
}

TEST(Comparable, ModesOfUnlikeGridsAreRefusedByFieldAndBothValues) {
  const std::tuple<const char*, GridPoint, const char*, const char*> unlike[] = {
      {"qps", {4, 1024, 128, 1}, "1, 8", "1, 4, 8"},
      {"input_len", {1, 512, 128, 1}, "1024, 2048", "512, 1024, 2048"},
      {"output_len", {1, 1024, 1, 1}, "128", "1, 128"},
      {"iteration", {1, 1024, 128, 2}, "1", "1, 2"}};
  for (const auto& [field, extra, ours, theirs] : unlike) {
    ResultSet set = set_of("a", {"pull", "push"}, kGrid);
    set.results.push_back(result_file("push", extra));
    const Status status = check_comparable(set);
    ASSERT_FALSE(status) << field;
    EXPECT_THAT(status.error().message, AllOf(HasSubstr(std::string(field) + ": mode pull has " +
                                                        ours + "; mode push has " + theirs)));
  }
}

TEST(Comparable, AHoleInOneGridIsNamed) {
  for (const std::size_t hole : {std::size_t{1}, std::size_t{6}}) {  // of pull, then of push
    ResultSet set = set_of("a", {"pull", "push"}, kGrid);
    set.results.erase(set.results.begin() + static_cast<std::ptrdiff_t>(hole));
    const Status status = check_comparable(set);
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().message, HasSubstr(hole == 1 ? "mode pull has no such result"
                                                            : "mode push has no such result"));
    EXPECT_THAT(status.error().message,
                HasSubstr(hole == 1 ? "qps 1, input_len 2048" : "qps 8, input_len 1024"));
  }
}

TEST(Comparable, SettingsAndSeedsOfOneFolderMustBeOne) {
  const std::pair<const char*, std::function<void(ResultFile&)>> unlike[] = {
      {"first_token: ", [](ResultFile& r) { r.setting.first_token = "prefill"; }},
      {"prefill: ", [](ResultFile& r) { r.setting.prefill = "cached"; }},
      {"emulated: ", [](ResultFile& r) { r.setting.emulated = false; }},
      {"profile: ", [](ResultFile& r) { r.setting.profile = "slow-link"; }},
      {"scale: ", [](ResultFile& r) { r.setting.scale = 16; }},
      {"variant: ", [](ResultFile& r) { r.setting.variant = "no slot limit"; }},
      {"setting max_num_seqs: ", [](ResultFile& r) { r.setting.all["max_num_seqs"] = "0"; }},
      {"setting num_warmups: ", [](ResultFile& r) { r.setting.all.erase("num_warmups"); }},
      {"setting new_one: ", [](ResultFile& r) { r.setting.all["new_one"] = "1"; }},
      {"seed: ", [](ResultFile& r) { r.seed = 8; }}};
  for (const auto& [field, change] : unlike) {
    ResultSet set = set_of("a", {"pull", "push"}, kGrid);
    change(set.results.back());
    const Status status = check_comparable(set);
    ASSERT_FALSE(status) << field;
    EXPECT_THAT(status.error().message, AllOf(HasSubstr(field), HasSubstr("push_qps8_in2048")));
  }
}

TEST(Comparable, ASettingThatDiffersIsNamedWithBothValues) {
  ResultSet set = set_of("a", {"pull", "push"}, kGrid);
  set.results.back().setting.all["serve_flags"] = R"(["--threads","1"])";
  EXPECT_THAT(check_comparable(set).error().message,
              AllOf(HasSubstr("setting serve_flags: pull_qps1_in1024"), HasSubstr(" has []; push"),
                    HasSubstr(R"(has ["--threads","1"])")));
  set = set_of("a", {"pull", "push"}, kGrid);
  for (ResultFile& r : set.results) {
    r.setting.all["servers.decode.pull_loop"] = r.mode == "pull" ? "\"engine\"" : "null";
    r.setting.all["servers.decode.transfer_style"] = r.mode;
    r.setting.all["servers.decode.max_num_seqs"] = "8";
  }
  EXPECT_TRUE(check_comparable(set)) << "modes differ in their loop and style";
  set.results.back().setting.all["servers.decode.max_num_seqs"] = "1024";
  EXPECT_THAT(check_comparable(set).error().message,
              HasSubstr("setting servers.decode.max_num_seqs: pull_qps1_in1024"));
  set.results.back().setting.all.clear();
  EXPECT_THAT(check_comparable(set).error().message, HasSubstr("has absent"))
      << "a file that does not say";
}

TEST(Comparable, FoldersOfUnlikeModesOrGridsAreRefused) {
  const ResultSet a = set_of("first", {"pull", "push"}, kGrid);
  EXPECT_TRUE(check_comparable(a, set_of("second", {"pull", "push"}, kGrid)));
  EXPECT_THAT(check_comparable(a, set_of("second", {"push"}, kGrid)).error().message,
              HasSubstr("mode: first has pull, push; second has push"));
  std::vector<GridPoint> shorter(kGrid.begin(), kGrid.begin() + 2);
  EXPECT_THAT(check_comparable(a, set_of("second", {"pull", "push"}, shorter)).error().message,
              HasSubstr("qps: first has 1, 8; second has 1"));
}

class Folder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "baton-plot-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  void TearDown() override { fs::remove_all(path_); }

  void put(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
  }
  void put_result(const std::string& mode, const GridPoint& at, const std::string& qps) const {
    put(mode + "_qps" + qps + "_in1024_out128_iter1.json", result_json(mode, at).dump());
  }

  fs::path path_;
};

TEST_F(Folder, IsReadInTheOrderOfTheLegend) {
  put_result("push", {8, 1024, 128, 1}, "8");
  put_result("push", {1, 1024, 128, 1}, "1");
  put_result("local", {1, 1024, 128, 1}, "1");
  put("plan.json", "not ours");
  put("push_qps8_in1024_out128_iter1.log", "words");
  const auto set = read_results(path_, {}, 10);
  ASSERT_TRUE(set) << set.error().message;
  EXPECT_THAT(set->modes, ElementsAre("local", "push"));
  ASSERT_EQ(set->results.size(), 3U);
  EXPECT_EQ(set->results[1].at.qps, 1);
  EXPECT_EQ(read_results(path_, {"push"}, 10)->results.size(), 2U);
}

TEST_F(Folder, WithoutResultsOrWithoutTheModeIsRefused) {
  EXPECT_THAT(read_results(path_, {}, 10).error().message, HasSubstr("no result file"));
  EXPECT_THAT(read_results(path_ / "none", {}, 10).error().message, HasSubstr("none"));
  put_result("push", {8, 1024, 128, 1}, "8");
  EXPECT_THAT(read_results(path_, {"pull"}, 10).error().message,
              AllOf(HasSubstr("no results of mode pull"), HasSubstr("it has push")));
}

TEST_F(Folder, OnePointUnderTwoNamesIsRefused) {
  put_result("push", {8, 1024, 128, 1}, "8");
  put_result("push", {8, 1024, 128, 1}, "8.0");
  EXPECT_THAT(read_results(path_, {}, 10).error().message, HasSubstr("same grid point"));
}

TEST_F(Folder, AFaultyFileIsNamedAndNotLeftOut) {
  put_result("push", {8, 1024, 128, 1}, "8");
  put("push_qps1_in1024_out128_iter1.json", "{}");
  EXPECT_THAT(read_results(path_, {}, 10).error().message,
              HasSubstr("push_qps1_in1024_out128_iter1.json: field completed is missing"));
}

}  // namespace
}  // namespace baton::bench::plot
