// A fabric behind a link of a set speed: any other fabric, and before it a token bucket that
// all peers share, for what this process posts, writes and reads alike. It shows on a machine
// without such a network what a transfer costs at a stated bandwidth, and what posting costs that
// needs time for each operation.
//
// A post that comes too early is refused with kResourceExhausted, and second_wait_fd() becomes
// readable when it is time. So nothing is queued here, and whatever the port promises of
// operations, closing and fences is the real fabric's own promise. Bytes are seen at most one
// write's time early, which is why `write_bytes_max` is what the link carries in kWriteTime.
#pragma once

#include <functional>
#include <memory>

#include "base/unique_fd.h"
#include "baton/metrics.h"
#include "fabric/fabric.h"
#include "fabric/paced/pacer.h"

namespace baton::fabric::paced {

struct Link {
  std::uint64_t bytes_per_second = 0;  // 0: as fast as the real fabric
  Duration post_cost{0};               // of each post; overlaps with the bytes of others
};

class PacedFabric final : public Fabric {
 public:
  using Clock = std::function<Time()>;
  static constexpr Duration kWriteTime = std::chrono::microseconds(100);
  static constexpr std::uint64_t kWriteBytesLeast = 4096;
  // Refused posts are not woken for more often than this; what that costs is caught up.
  static constexpr Duration kTick = std::chrono::microseconds(50);

  // `metrics` outlives it. Errors: no descriptor could be had.
  static Result<std::unique_ptr<PacedFabric>> create(std::unique_ptr<Fabric> real, const Link& link,
                                                     LinkMetrics& metrics, Clock clock = &now);

  const Capabilities& capabilities() const override { return capabilities_; }
  Status register_regions(std::span<const Region> regions) override;
  Result<Inbound> open_inbound(const PeerId& peer, Access access) override {
    return real_->open_inbound(peer, access);
  }
  void fence_inbound(InboundId inbound) override { real_->fence_inbound(inbound); }
  Result<OutboundId> connect(const PeerId& peer, std::span<const std::byte> offer,
                             std::span<const Region> regions) override {
    return real_->connect(peer, offer, regions);
  }
  void close_outbound(OutboundId outbound) override { real_->close_outbound(outbound); }
  Status post(const Write& write) override;
  Status post_read(const Read& read) override;
  std::size_t poll(std::span<FabricEvent> out) override;
  bool busy() const override { return real_->busy(); }
  int wait_fd() const override { return real_->wait_fd(); }
  int second_wait_fd() const override { return timer_.get(); }

 private:
  PacedFabric(std::unique_ptr<Fabric> real, const Link& link, LinkMetrics& metrics, Clock clock,
              UniqueFd timer);
  void take_capabilities();
  template <typename Operation>
  Status paced(const Operation& operation, Status (Fabric::*post)(const Operation&));
  bool may_post(Time now);
  Status refuse(Time now);
  void taken(std::uint64_t bytes);
  void wake_at(Time now, Time when);
  bool timer_runs();
  void note_turn();

  const std::unique_ptr<Fabric> real_;
  const Link link_options_;
  LinkMetrics& metrics_;
  const Clock clock_;
  Capabilities capabilities_;
  const UniqueFd timer_;
  Pacer link_, posting_;
  std::uint64_t in_flight_ = 0;
  // Somebody posts, or tried to: until there were turns in which nobody did.
  bool in_demand_ = false;
  int missed_turns_ = 0;
  bool armed_ = false;
};

}  // namespace baton::fabric::paced
