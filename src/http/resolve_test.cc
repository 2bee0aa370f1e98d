// Names are looked up within a time, whatever the resolver does meanwhile.
#include "http/resolve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <memory>

#include "http/client.h"

namespace baton::http {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Answers when it is let go, and not before: whoever waited for it would hang here.
class StuckResolver {
 public:
  ~StuckResolver() { let_go_->count_down(); }
  Lookup lookup() const {
    return [let_go = let_go_](const std::string&) -> Result<Addresses> {
      let_go->wait();
      return Addresses{"127.0.0.1"};
    };
  }

 private:
  std::shared_ptr<std::latch> let_go_ = std::make_shared<std::latch>(1);
};

TEST(HttpResolve, AResolverThatHangsIsWaitedForNoLongerThanTold) {
  const StuckResolver stuck;
  const auto found = resolve_within("p0.example", 20ms, stuck.lookup());
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Errc::kDeadlineExceeded);
  EXPECT_THAT(found.error().message, HasSubstr("'p0.example'"));
}

TEST(HttpResolve, AnAddressIsItsOwnAnswerAndANameHasAllOfItsOwn) {
  const StuckResolver stuck;
  for (const char* address : {"127.0.0.1", "::1"}) {
    EXPECT_THAT(resolve_within(address, 20ms, stuck.lookup()).value(), ElementsAre(address));
  }
  const Lookup two = [](const std::string& host) -> Result<Addresses> {
    return Addresses{host + "-a", host + "-b"};
  };
  EXPECT_THAT(resolve_within("p0", 20s, two).value(), ElementsAre("p0-a", "p0-b"));
  const Lookup none = [](const std::string&) -> Result<Addresses> {
    return fail(Errc::kNotFound, "unknown");
  };
  EXPECT_EQ(resolve_within("p0", 20s, none).error().message, "unknown");
}

TEST(HttpResolve, AFetchEndsWhileItsLookUpHangs) {
  const StuckResolver stuck;
  Call call;
  call.url = "http://p0.example:8100/baton/instance";
  call.timeout = call.connect_timeout = 20ms;
  const auto response = fetch(call, stuck.lookup());
  ASSERT_FALSE(response);
  EXPECT_EQ(response.error().code, Errc::kDeadlineExceeded);
  EXPECT_THAT(response.error().message, HasSubstr("http://p0.example:8100"));
}

}  // namespace
}  // namespace baton::http
