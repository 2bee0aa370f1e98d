#include "wire/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "layout/test_geometry.h"

namespace baton::wire {
namespace {

using ::testing::HasSubstr;

Hello make_hello(Role role) {
  Hello hello;
  hello.from = {role == Role::kProducer ? "p0" : "d0", 42};
  hello.role = role;
  hello.fabric = "shm";
  hello.geometry = layout::make_pool().geometry;
  return hello;
}

struct Fault {
  const char* field;
  std::function<void(Hello&)> make;
};

TEST(Handshake, TakesPeersThatShareAFabric) {
  const auto fit = [](const char* ours, const char* theirs) {
    Hello p = make_hello(Role::kProducer);
    Hello d = make_hello(Role::kConsumer);
    p.fabric = ours;
    d.fabric = theirs;
    return !check_handshake(p, d, Role::kConsumer);
  };
  for (const char* name : {"auto", "shm", "libfabric"}) {
    EXPECT_TRUE(fit(name, name));
    EXPECT_TRUE(fit("auto", name));
    EXPECT_TRUE(fit(name, "auto"));
  }
  EXPECT_FALSE(fit("shm", "libfabric"));
  EXPECT_FALSE(fit("auto", "sim"));
}

TEST(Handshake, NamesWhatDiffersOnBothSides) {
  const std::vector<Fault> faults{
      {"version", [](Hello& h) { h.version = h.version_min = 9; }},
      {"engine_id", [](Hello& h) { h.expected.engine_id = "someone"; }},
      {"incarnation", [](Hello& h) { h.expected.incarnation = 1; }},
      {"mode", [](Hello& h) { h.mode = Mode::kPull; }},
      {"role", [](Hello& h) { h.role = Role::kProducer; }},
      {"fabric", [](Hello& h) { h.fabric = "libfabric"; }},
      {"geometry", [](Hello& h) { h.geometry.regions[0].num_blocks = 0; }},
      {"kv_dtype", [](Hello& h) { h.geometry.kv_dtype = "float32"; }},
  };
  const Hello ours = make_hello(Role::kProducer);
  EXPECT_FALSE(check_handshake(ours, make_hello(Role::kConsumer), Role::kConsumer));
  for (const Fault& fault : faults) {
    Hello theirs = make_hello(Role::kConsumer);
    fault.make(theirs);
    const auto mismatch = check_handshake(ours, theirs, Role::kConsumer);
    ASSERT_TRUE(mismatch) << fault.field;
    EXPECT_EQ(mismatch->field, fault.field);
    EXPECT_NE(mismatch->ours, mismatch->theirs) << fault.field;
  }
}

TEST(Handshake, TheVersionBeforeThisOneIsSpokenToo) {
  Hello ours = make_hello(Role::kProducer);
  Hello theirs = make_hello(Role::kConsumer);
  ours.version = 3;
  ours.version_min = 2;
  theirs.version = 2;
  theirs.version_min = 1;
  EXPECT_FALSE(check_handshake(ours, theirs, Role::kConsumer));
  EXPECT_EQ(spoken_version(ours, theirs), 2);
  theirs.version = 1;
  EXPECT_TRUE(check_handshake(ours, theirs, Role::kConsumer));
}

class RegisterTest : public ::testing::Test {
 protected:
  RegisterTest() {
    message.transfer = {1, 2};
    message.range = {4, 15};
    message.prompt_tokens = 15;
    message.num_groups = 1;
    message.block_ids[0] = ids;
    message.num_grants = 1;
  }
  std::string refusal() {
    const Status status = check_register(geometry, geometry, message, finder);
    return status ? "" : status.error().message;
  }
  Geometry geometry = layout::make_pool(2, 8).geometry;  // blocks of 4 tokens
  DuplicateFinder finder{8};
  std::vector<BlockId> ids{7, 0, 3};
  Register message;
};

TEST_F(RegisterTest, AcceptsAGoodOne) {
  EXPECT_EQ(refusal(), "");
}

TEST_F(RegisterTest, AcceptsAnEmptyOne) {
  message.range = {8, 8};
  message.block_ids[0] = {};
  EXPECT_EQ(refusal(), "");
}

TEST_F(RegisterTest, RefusesABlockBeyondThePool) {
  ids[1] = 8;
  EXPECT_THAT(refusal(), HasSubstr("names block 8, the pool has 8"));
}

TEST_F(RegisterTest, RefusesABlockNamedTwice) {
  ids[2] = 7;
  EXPECT_THAT(refusal(), HasSubstr("names block 7 twice"));
  ids[2] = 3;
  EXPECT_EQ(refusal(), "");  // the finder starts anew
}

TEST_F(RegisterTest, RefusesWrongCounts) {
  message.range = {4, 17};
  message.prompt_tokens = 17;
  EXPECT_THAT(refusal(), HasSubstr("lists 3 blocks, tokens 4 to 17 need 4"));
  message.range = {0, 4294967295U};
  message.prompt_tokens = 4294967295U;
  EXPECT_THAT(refusal(), HasSubstr("lists 3 blocks"));
  message.num_groups = 2;
  EXPECT_THAT(refusal(), HasSubstr("has 2 groups, num_groups is 1"));
}

TEST_F(RegisterTest, RefusesARangeInsideABlockOrBeyondThePrompt) {
  message.range = {5, 15};
  EXPECT_THAT(refusal(), HasSubstr("range.begin is 5, block_size is 4"));
  message.range = {4, 15};
  message.prompt_tokens = 14;
  EXPECT_THAT(refusal(), HasSubstr("range.end is 15, prompt_tokens is 14"));
}

TEST_F(RegisterTest, RefusesAnotherWriter) {
  message.grant.writer.tp = 3;
  EXPECT_THAT(refusal(), HasSubstr("rank tp 3"));
  message.num_grants = 2;
  EXPECT_THAT(refusal(), HasSubstr("2 grants"));
}

}  // namespace
}  // namespace baton::wire
