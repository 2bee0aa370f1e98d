#include "base/printable.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(Printable, LeavesTextAlone) {
  EXPECT_EQ(printable(""), "");
  EXPECT_EQ(printable("a \"b\" \\c = d"), "a \"b\" \\c = d");
  EXPECT_EQ(printable("gr\xc3\xb6\xc3\x9f \xe6\x97\xa5 \xf0\x9f\x99\x82"),
            "gr\xc3\xb6\xc3\x9f \xe6\x97\xa5 \xf0\x9f\x99\x82");
}

TEST(Printable, ShowsWhatWouldAct) {
  EXPECT_EQ(printable("a\nb\r\tc"), "a\\nb\\x0d\\x09c");
  EXPECT_EQ(printable("\x1b[2J\x7f"), "\\x1b[2J\\x7f");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "\\xc2\\x9b31m")
      << "a C1 control introducer";
  EXPECT_EQ(printable("\xe2\x80\xaetxt"), "\\xe2\\x80\\xaetxt") << "right to left";
}

TEST(Printable, ShowsBytesThatAreNoUtf8) {
  EXPECT_EQ(printable("\x9b"
                      "31m"),
            "\\x9b31m")
      << "C1 on an 8-bit terminal";
  EXPECT_EQ(printable("a\xc3"), "a\\xc3");
  EXPECT_EQ(printable("\xc0\x8a"), "\\xc0\\x8a") << "a line feed in an overlong form";
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");
  EXPECT_EQ(printable("\xf5\x80\x80\x80"), "\\xf5\\x80\\x80\\x80");
}

TEST(Printable, CutsAndSaysSo) {
  EXPECT_EQ(printable("abc", 3), "abc");
  EXPECT_EQ(printable("abcd", 3), "abc...");
  EXPECT_EQ(printable(std::string(1000, 'x'), 10).size(), 13U);
}

}  // namespace
}  // namespace baton
