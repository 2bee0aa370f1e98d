#include <cstring>

#include "base/check.h"
#include "baton/pool.h"
#include "fabric/testing/node.h"

namespace baton::fabric::testing {
namespace {

class LocalNode final : public Node {
 public:
  LocalNode(std::unique_ptr<Fabric> fabric, Memory memory, std::uint64_t bytes)
      : pool_(PoolMemory::create("fabric-test", bytes).value()), fabric_(std::move(fabric)) {
    if (memory == Memory::kPrivate) private_.resize(bytes);
    Region region;
    region.name = "layer.0";
    region.base = memory == Memory::kPrivate ? private_.data() : pool_.data();
    region.block_bytes = region.stride_bytes = bytes;
    region.num_blocks = 1;
    region.memfd = memory == Memory::kPrivate ? -1 : pool_.memfd();
    base_ = region.base;
    regions_ = {region};
    const Status ok = fabric_->register_regions(regions_);
    BATON_CHECK(ok, "{}", ok.error().message);
  }

  Result<Fabric::Inbound> open_inbound(const PeerId& peer, Access access) override {
    return fabric_->open_inbound(peer, access);
  }
  void fence_inbound(InboundId inbound) override { fabric_->fence_inbound(inbound); }
  Result<OutboundId> connect(const PeerId& peer, const Bytes& offer,
                             const std::vector<Region>& regions) override {
    return fabric_->connect(peer, offer, regions);
  }
  void close_outbound(OutboundId outbound) override { fabric_->close_outbound(outbound); }
  Posted post(const std::vector<Write>& writes) override {
    Posted posted;
    for (const Write& write : writes) {
      posted.status = fabric_->post(write);
      if (!posted.status) break;
      ++posted.accepted;
    }
    return posted;
  }
  Posted post_reads(const std::vector<Read>& reads) override {
    Posted posted;
    for (const Read& read : reads) {
      posted.status = fabric_->post_read(read);
      if (!posted.status) break;
      ++posted.accepted;
    }
    return posted;
  }
  std::vector<FabricEvent> poll(std::size_t max) override {
    std::vector<FabricEvent> events(max);
    events.resize(fabric_->poll(events));
    return events;
  }
  bool busy() override { return fabric_->busy(); }
  void fill(std::uint64_t offset, std::uint64_t length, std::uint32_t seed) override {
    for (std::uint64_t i = offset; i < offset + length; ++i) base_[i] = pattern(i, seed);
  }
  Bytes read(std::uint64_t offset, std::uint64_t length) override {
    return {base_ + offset, base_ + offset + length};
  }
  Capabilities capabilities() override { return fabric_->capabilities(); }
  std::vector<Region> regions() override {
    std::vector<Region> told = regions_;
    for (Region& region : told) {
      region.base = nullptr;
      region.memfd = -1;
    }
    return told;
  }

 private:
  PoolMemory pool_;
  Bytes private_;
  std::byte* base_ = nullptr;
  std::vector<Region> regions_;
  std::unique_ptr<Fabric> fabric_;  // last: goes before its memory
};

}  // namespace

std::byte pattern(std::uint64_t offset, std::uint32_t seed) {
  const std::uint64_t x = (offset + 1) * 0x9E3779B97F4A7C15ULL + seed * 0xC2B2AE3D27D4EB4FULL;
  return static_cast<std::byte>(x >> 56);
}

Bytes pattern(std::uint64_t offset, std::uint64_t length, std::uint32_t seed) {
  Bytes bytes(length);
  for (std::uint64_t i = 0; i < length; ++i) bytes[i] = pattern(offset + i, seed);
  return bytes;
}

std::unique_ptr<Node> make_local_node(std::unique_ptr<Fabric> fabric, Memory memory,
                                      std::uint64_t bytes) {
  return std::make_unique<LocalNode>(std::move(fabric), memory, bytes);
}

}  // namespace baton::fabric::testing
