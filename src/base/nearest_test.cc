#include "base/nearest.h"

#include <gtest/gtest.h>

#include <vector>

namespace baton {
namespace {

const std::vector<std::string> kFlags = {"--seed", "--request-rate", "--num-prompts",
                                         "--random-input-len", "--random-output-len"};

TEST(NearestWord, is_the_one_with_the_fewest_changes) {
  EXPECT_EQ(nearest_word("--request-rat", kFlags), "--request-rate");
  EXPECT_EQ(nearest_word("--random-inputlen", kFlags), "--random-input-len");
  EXPECT_EQ(nearest_word("--random_output_len", kFlags), "--random-output-len");
  EXPECT_EQ(nearest_word("--num-prompt", kFlags), "--num-prompts");
}

TEST(NearestWord, is_none_when_nothing_is_like_it) {
  EXPECT_EQ(nearest_word("qqqqqqqqqqqq", kFlags), "");
  EXPECT_EQ(nearest_word("--seed", {}), "");
  EXPECT_EQ(nearest_word("--seed", std::vector<std::string>{"--help"}), "");
}

}  // namespace
}  // namespace baton
