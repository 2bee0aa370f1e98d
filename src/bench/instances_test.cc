#include "bench/instances.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "bench/testing/fake_server.h"
#include "serving/instance_info.h"

namespace baton::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kRouterPage[] = R"(# TYPE baton_router_instance_up gauge
baton_router_instance_up{stage="prefill",url="http://10.0.0.1:8100"} 1
baton_router_instance_up{stage="decode",url="http://10.0.0.2:8200/"} 0
baton_router_instance_up{stage="decode",url="http://10.0.0.3:8200"} 1
baton_router_instance_running{stage="decode",url="http://10.0.0.4:8200"} 3
)";

TEST(Instances, are_those_that_the_router_lists) {
  const Instances all = parse_router_page(kRouterPage);
  EXPECT_THAT(all.prefill, ElementsAre("http://10.0.0.1:8100"));
  EXPECT_THAT(all.decode, ElementsAre("http://10.0.0.2:8200", "http://10.0.0.3:8200"));
  EXPECT_EQ(all.all().size(), 3U);
  EXPECT_THAT(parse_router_page("vllm:num_requests_running 1\n").all(), IsEmpty());
}

TEST(Instances, that_are_given_stand_instead_of_the_routers) {
  const Instances given =
      find_instances("http://127.0.0.1:1", "http://10.0.0.1:8100/", "http://10.0.0.2:8200");
  EXPECT_THAT(given.prefill, ElementsAre("http://10.0.0.1:8100"));
  EXPECT_THAT(given.decode, ElementsAre("http://10.0.0.2:8200"));
  EXPECT_THAT(find_instances("http://127.0.0.1:1", "", "").all(), IsEmpty()) << "nobody answers";
}

serving::InstanceInfo with_blocks(std::uint32_t free, std::uint32_t total) {
  serving::InstanceInfo info;
  info.role = "kv_consumer";
  info.mode = "push";
  info.block_size = 16;
  info.blocks_free = free;
  info.blocks_total = total;
  return info;
}

TEST(Pool, is_what_an_instance_says_of_its_blocks) {
  const auto use = parse_pool(to_json(with_blocks(30, 100)));
  ASSERT_TRUE(use.has_value());
  EXPECT_EQ(use->blocks, 100U);
  EXPECT_EQ(use->most_used, 70U);
  EXPECT_FALSE(parse_pool("{}").has_value());
  EXPECT_FALSE(parse_pool(to_json(with_blocks(0, 0)))) << "still loading";
  EXPECT_FALSE(parse_pool(to_json(with_blocks(9, 5)))) << "nonsense";
}

TEST(Pool, is_full_where_one_more_request_would_have_found_no_room) {
  const PoolUse use = {100, 70, 16};
  EXPECT_FALSE(is_full(use, 480)) << "30 blocks";
  EXPECT_TRUE(is_full(use, 481));
}

TEST(Pool, of_a_side_is_its_fullest) {
  const std::map<std::string, PoolUse> uses = {{"a", {100, 50, 16}}, {"b", {40, 30, 16}}};
  EXPECT_EQ(fullest(uses, {"a", "b"})->most_used, 30U);
  EXPECT_EQ(fullest(uses, {"a", "c"})->most_used, 50U);
  EXPECT_FALSE(fullest(uses, {"c"}).has_value());
}

// Used falls from look to look; the most stays.
TEST(PoolWatch, keeps_the_most_and_asks_nobody_again_who_does_not_say) {
  std::atomic<std::uint32_t> looks{0};
  std::atomic<int> others{0};
  auto instance = http::Server::start({}, [&](http::Request, testing::FakeServer::Writer writer) {
    const std::uint32_t look = looks++;
    looks.notify_all();
    writer->respond(200, "application/json", to_json(with_blocks(10 + look, 100)));
  });
  auto stranger = http::Server::start({}, [&](http::Request, testing::FakeServer::Writer writer) {
    ++others;
    writer->respond(404, "application/json", "{}");
  });
  const auto url = [](const auto& server) {
    return "http://127.0.0.1:" + std::to_string((*server)->port());
  };
  PoolWatch watch({url(instance), url(stranger)});
  for (std::uint32_t seen = looks; seen < 3; seen = looks) looks.wait(seen);
  const auto uses = watch.stop();
  ASSERT_EQ(uses.size(), 1U);
  EXPECT_EQ(uses.at(url(instance)).most_used, 90U);
  EXPECT_EQ(others, 1);
}

}  // namespace
}  // namespace baton::bench
