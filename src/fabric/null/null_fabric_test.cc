#include "fabric/null/null_fabric.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "fabric/access.h"

namespace baton::fabric {
namespace {

TEST(NullFabric, CompletesWhatFitsAndRefusesWhatDoesNot) {
  const auto fabric = make_null_fabric();
  std::array<std::byte, 64> memory{};
  Region region;
  region.base = memory.data();
  region.stride_bytes = region.block_bytes = memory.size();
  region.num_blocks = 1;
  const std::vector regions{region};
  ASSERT_TRUE(fabric->register_regions(regions));
  const auto inbound = fabric->open_inbound(PeerId{"p", 1}, Access::kWrite).value();
  const OutboundId to = fabric->connect(PeerId{"d", 1}, inbound.offer, regions).value();
  std::vector<FabricEvent> events(4);
  ASSERT_EQ(fabric->poll(events), 1U);
  EXPECT_EQ(events[0].kind, FabricEvent::Kind::kConnected);
  Write write;
  write.to = to;
  write.length = 64;
  write.context = 5;
  EXPECT_TRUE(fabric->post(write));
  write.length = 65;
  EXPECT_FALSE(fabric->post(write));
  EXPECT_TRUE(fabric->busy());
  ASSERT_EQ(fabric->poll(events), 1U);
  EXPECT_EQ(events[0].kind, FabricEvent::Kind::kWriteDone);
  EXPECT_EQ(events[0].context, 5U);
  fabric->close_outbound(to);
  ASSERT_EQ(fabric->poll(events), 1U);
  EXPECT_EQ(events[0].kind, FabricEvent::Kind::kOutboundClosed);
  EXPECT_FALSE(fabric->busy());
}

TEST(NullFabric, ReadsCompleteWhereTheOfferGrantsThem) {
  const auto fabric = make_null_fabric();
  std::array<std::byte, 64> memory{};
  Region region;
  region.base = memory.data();
  region.stride_bytes = region.block_bytes = memory.size();
  region.num_blocks = 1;
  const std::vector regions{region};
  ASSERT_TRUE(fabric->register_regions(regions));
  EXPECT_FALSE(fabric->connect(PeerId{"p", 1}, {}, regions));
  const auto inbound = fabric->open_inbound(PeerId{"d", 1}, Access::kRead).value();
  const OutboundId from = fabric->connect(PeerId{"p", 1}, inbound.offer, regions).value();
  std::vector<FabricEvent> events(4);
  ASSERT_EQ(fabric->poll(events), 1U);
  Read read;
  read.from = from;
  read.context = 6;
  EXPECT_FALSE(fabric->post_read(read));
  read.length = 65;
  EXPECT_FALSE(fabric->post_read(read));
  read.length = 64;
  EXPECT_TRUE(fabric->post_read(read));
  EXPECT_FALSE(fabric->post(as_write(read)));
  ASSERT_EQ(fabric->poll(events), 1U);
  EXPECT_EQ(events[0].kind, FabricEvent::Kind::kReadDone);
  EXPECT_EQ(events[0].context, 6U);
}

}  // namespace
}  // namespace baton::fabric
