#include "fabric/null/null_fabric.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

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
  const OutboundId to = fabric->connect(PeerId{"d", 1}, {}, regions).value();
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

}  // namespace
}  // namespace baton::fabric
