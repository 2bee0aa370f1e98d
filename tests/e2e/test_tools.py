"""The checks of the tree find what they are there to find."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import hygiene  # noqa: E402

PAGE = "## Reports about other systems\n\n| report | trial |\n|---|---|\n| B01 | {} |\n\n## Golden files\n"


def breaches(names, *sources):
    return list(hygiene.trial_breaches(PAGE.format(names), sources))


def test_a_trial_is_a_test_and_no_mention_of_one():
    for source in ("TEST(Suite, B01_Ends) {\n}", "TEST_F(Suite, B01_Ends) {", "TEST_P(Suite,\n       B01_Ends) {"):
        assert breaches("`B01_Ends`", source) == []
    assert breaches("`test_B01_ends`", "def test_B01_ends(servers):\n    pass\n") == []
    for source in ("// B01_Ends was here\n", "# B01_Ends\n", "int B01_Ends = 0;", "TEST(Suite, B01_EndsLater) {"):
        assert "docs/testing.md: no test is called B01_Ends" in breaches("`B01_Ends`", source), source


def test_a_trial_that_the_page_forgot_is_named():
    assert breaches("`B01_Ends`", "TEST(S, B01_Ends) {", "TEST(S, B02_Other) {") == [
        "docs/testing.md: the table of reports does not name B02_Other"]
    assert breaches("`B01_Ends`", "TEST(S, B01_Ends) {  // unlike B02_Other") == []


def test_a_test_that_a_table_names_is_in_that_program():
    programs = hygiene.tests_of_programs({
        pathlib.Path("src/a/CMakeLists.txt"): "baton_test(a_test\n  SOURCES one_test.cc\n    two_test.cc\n  DEPS a)",
        pathlib.Path("src/a/one_test.cc"): "TEST(Pair, Ends) {",
        pathlib.Path("src/a/two_test.cc"): "TEST_F(Other,\n       Begins) {\n// TEST(Pair, Never) {",
        pathlib.Path("src/b/CMakeLists.txt"): "baton_test(b_test SOURCES one_test.cc DEPS b)",
        pathlib.Path("src/b/one_test.cc"): "TEST_P(Third, Ends) {"})
    for named, breach in [("a_test Pair.Ends", None), ("a_test Other.Begins", None), ("b_test Third.Ends", None),
                          ("a_test Pair.Never", "a_test has no test Pair.Never"),
                          ("a_test Third.Ends", "a_test has no test Third.Ends"),
                          ("c_test Pair.Ends", "no test program is called c_test")]:
        found = list(hygiene.named_test_breaches("x.cc", f'{{\n "{named}"}},', programs))
        assert found == ([f"x.cc:2: {breach}"] if breach else []), named
