// The router's table of bounds in docs/protocol.md is the table in the code.
#include "serving/route_bounds.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

namespace baton::serving {
namespace {

TEST(RouteBounds, ThePageSaysWhatTheCodeSays) {
  std::ifstream file(BATON_SOURCE_DIR "/docs/protocol.md");
  ASSERT_TRUE(file);
  std::stringstream page;
  page << file.rdbuf();
  EXPECT_NE(page.str().find(route_bounds_markdown() + '\n'), std::string::npos)
      << "docs/protocol.md must hold exactly this table:\n"
      << route_bounds_markdown();
}

TEST(RouteBounds, FollowTheFlags) {
  RouterOptions slow;
  handover::Config prefill;
  slow.request_timeout *= 2;
  slow.idle_timeout *= 2;
  slow.upstreams.peer_timeout *= 2;
  prefill.lease *= 2;
  for (const RouteBound& bound : kRouteBounds) {
    const Duration within = bound.within({}, {});
    const bool has_flag = bound.formula.find("--") != std::string_view::npos;
    EXPECT_EQ(bound.within(slow, prefill), has_flag ? 2 * within : within) << bound.lost;
  }
}

// What this program is said to try is among its tests; of other programs tools/hygiene.py knows.
TEST(RouteBounds, EveryRowNamesTheTestThatTriesIt) {
  std::set<std::string> here;
  const auto& all = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int k = 0; k < suite.total_test_count(); ++k) {
      here.insert(fmt::format("serving_test {}.{}", suite.name(), suite.GetTestInfo(k)->name()));
    }
  }
  for (const RouteBound& bound : kRouteBounds) {
    const bool is_here = bound.tried_by.starts_with("serving_test ");
    EXPECT_TRUE(is_here ? here.contains(std::string(bound.tried_by))
                        : bound.tried_by.starts_with("handover_test ") ||
                              bound.tried_by.starts_with("http_test "))
        << bound.tried_by;
  }
}

}  // namespace
}  // namespace baton::serving
