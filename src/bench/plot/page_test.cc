// The page as text: what strangers wrote stays data. How it draws is tested in tests/e2e.
#include "bench/plot/page.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "bench/plot/browser.h"
#include "bench/plot/figures.h"
#include "bench/plot/page_data.h"
#include "bench/plot/testing/results.h"
#include "bench/plot/text_file.h"

namespace baton::bench::plot {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::result_file;
using Json = nlohmann::json;

constexpr char kHostile[] = "</script><script>alert(1)</script><!-- {{page.js}} &amp; \u2028";

std::vector<ResultSet> hostile_sets() {
  ResultFile result = result_file("push", {8, 1024, 128, 1});
  result.void_reason = kHostile;
  result.setting.profile = kHostile;
  return {{std::string("/results/") + kHostile, {"push"}, {result}}};
}

TEST(ForScript, KeepsTheDataAndLeavesNoMarkup) {
  const std::string json = Json{{"text", kHostile}}.dump();
  const std::string safe = for_script(json);
  EXPECT_EQ(safe.find_first_of("<>&"), std::string::npos);
  EXPECT_THAT(safe, Not(HasSubstr("\u2028")));
  EXPECT_EQ(Json::parse(safe), Json::parse(json));
}

TEST(Page, HoldsHostileTextAsDataOnly) {
  const auto sets = hostile_sets();
  const Summary summary = summarise(sets);
  const std::string page =
      make_page({"/* script */", "/* style */"}, page_data(sets, summary, {}), summary);
  EXPECT_THAT(page, Not(HasSubstr("<script>alert(1)")));
  // One element a part: no text of a file opened or closed another.
  std::size_t scripts = 0;
  for (std::size_t at = 0; (at = page.find("</script>", at)) != std::string::npos; ++at) ++scripts;
  EXPECT_EQ(scripts, 8U);                       // data, one result's requests, uPlot, five of ours
  EXPECT_THAT(page, HasSubstr("{{page.js}}"));  // data that looks like a place is none
}

TEST(Page, SaysItsData) {
  const auto sets = hostile_sets();
  const Summary summary = summarise(sets);
  const Json data = Json::parse(page_data(sets, summary, {Metric::kTpot, Stat::kP90}));
  EXPECT_EQ(data["metric"], "tpot");
  EXPECT_EQ(data["stat"], "p90");
  EXPECT_THAT(data["sources"][0]["emulated"].get<std::string>(),
              AllOf(HasSubstr("emulated"), HasSubstr("bytes / 64")));
  EXPECT_EQ(data["results"][0]["void"], kHostile);
  EXPECT_TRUE(data["groups"][0]["averages"]["ttft"]["mean"].is_null());
  EXPECT_EQ(data["results"][0]["values"]["ttft"]["mean"], 100);
}

TEST(Page, TellsTwoFoldersOfOneNameApart) {
  auto sets = hostile_sets();
  sets[0].label = "a/results";
  sets.push_back(sets[0]);
  sets[1].label = "b/results/";
  const Json data = Json::parse(page_data(sets, summarise(sets), {}));
  EXPECT_EQ(data["sources"][0]["label"], "a/results");
  EXPECT_EQ(data["sources"][1]["label"], "b/results/");
}

TEST(Page, NamesWhatTwoFoldersSetUnlike) {
  auto sets = hostile_sets();
  EXPECT_EQ(Json::parse(page_data(sets, summarise(sets), {}))["unlike"], Json::array());
  sets.push_back(sets[0]);
  EXPECT_EQ(Json::parse(page_data(sets, summarise(sets), {}))["unlike"], Json::array());
  sets[1].results[0].setting.all["max_num_seqs"] = "256";
  sets[1].results[0].setting.all["decode.pull_loop"] = "threaded";  // a mode's own
  sets[1].results[0].seed = 8;
  EXPECT_EQ(Json::parse(page_data(sets, summarise(sets), {}))["unlike"],
            Json::parse(R"([["max_num_seqs", "8", "256"], ["seed", "7", "8"]])"));
}

TEST(Uplot, ThatIsNotThereIsNamedWithTheRemedy) {
  const auto uplot = read_uplot("/nowhere");
  ASSERT_FALSE(uplot);
  EXPECT_THAT(uplot.error().message, AllOf(HasSubstr("/nowhere/uPlot.iife.min.js"),
                                           HasSubstr("tools/setup"), HasSubstr("BATON_UPLOT")));
}

TEST(Figure, IsTakenOutOfTheDumpedPage) {
  EXPECT_EQ(svg_of("<body><pre id=\"figure-base64\">PHN2Zy8+Cg==</pre>").value(), "<svg/>\n");
  EXPECT_EQ(svg_of("<pre id=\"figure-base64\"></pre>").value(), "");
  EXPECT_FALSE(svg_of("<body></body>"));
  EXPECT_FALSE(svg_of("<pre id=\"figure-base64\">PHN2"));
  EXPECT_FALSE(
      svg_of("<pre id=\"figure-base64\"><b>"
             "</pre>"));
}

TEST(Browser, ThatWasNamedAndIsNoneIsRefused) {
  const auto browser = find_browser("/nowhere/chromium");
  ASSERT_FALSE(browser);
  EXPECT_THAT(browser.error().message, HasSubstr("--chromium is /nowhere/chromium"));
}

TEST(Browser, ThatFailsIsSaid) {
  const auto failed = run_browser("/bin/false", {}, std::chrono::seconds(60));
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().message, HasSubstr("exit code 1"));
  EXPECT_THAT(run_browser("/nowhere/chromium", {}, std::chrono::seconds(60)).error().message,
              HasSubstr("exit code 127"));
}

// A browser that hangs is ended with its children, and this returns.
TEST(Browser, ThatHangsIsEnded) {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("hangs-{}", ::getpid());
  ASSERT_TRUE(write_file(path, "#!/bin/sh\nsleep 1000 & wait\n"));
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  const auto hung = run_browser(path, {}, std::chrono::seconds(1));
  std::filesystem::remove(path);
  ASSERT_FALSE(hung);
  EXPECT_THAT(hung.error().message, HasSubstr("did not end within 1 s"));
}

TEST(Figure, OfAnEarlierRunDoesNotPassForThisOne) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("stale-{}", ::getpid());
  const auto browser = folder / "draws-no-picture";
  ASSERT_TRUE(write_file(folder / "ttft_mean.png", "old"));
  ASSERT_TRUE(
      write_file(browser, "#!/bin/sh\necho '<pre id=\"figure-base64\">PHN2Zy8+Cg==</pre>'\n"));
  std::filesystem::permissions(browser, std::filesystem::perms::owner_all);
  const auto drawn =
      draw_figure(browser, folder / "plot.html", {{}, "linear", "light", 1, 1}, folder);
  const bool left = std::filesystem::exists(folder / "ttft_mean.png");
  std::filesystem::remove_all(folder);
  ASSERT_FALSE(drawn);
  EXPECT_THAT(drawn.error().message, HasSubstr("ttft_mean.png: Chromium wrote no picture"));
  EXPECT_FALSE(left);
}

TEST(Printable, ShowsWhatWouldSteerATerminal) {
  EXPECT_EQ(printable("a\x1b[2Jb\n"), "a\\x1b[2Jb\\x0a");
  EXPECT_EQ(printable("\xc2\x9b"
                      "caf\xc3\xa9"),
            "\\xc2\\x9b"
            "caf\xc3\xa9");
  EXPECT_EQ(printable("\xff"), "\\xff");
  EXPECT_EQ(printable("\xe2\x82"), "\\xe2\\x82");
}

}  // namespace
}  // namespace baton::bench::plot
