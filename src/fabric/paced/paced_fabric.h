// A fabric behind a link of a set speed: any other fabric, and before it a token bucket that
// all peers share, for what this process posts, writes and reads alike. It shows on a machine
// without such a network what a transfer costs at a stated bandwidth, and what posting costs that
// needs time for each operation.
//
// A post takes the poster `post_cost`, as it does at a network card, and then waits here for its
// turn on the link: the card's queue, as deep as the real fabric's. What comes before the poster is
// done with the one before, or when the queue is full, is refused with kResourceExhausted; where no
// completion follows that, second_wait_fd() becomes readable. A post that still waits here when its
// outbound closes fails and is over: no byte of it moved. So does, where it waited, one that the
// offer's access does not grant. Beyond that, whatever the port promises
// of operations, closing and fences is the real fabric's own promise. Bytes are seen at most one
// write's time early, which is why `write_bytes_max` is what the link carries in kWriteTime.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <variant>

#include "base/unique_fd.h"
#include "baton/metrics.h"
#include "fabric/fabric.h"
#include "fabric/paced/pacer.h"
#include "fabric/region_table.h"

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
  std::string_view carrier_of(InboundId inbound) const override {
    return real_->carrier_of(inbound);
  }
  Result<OutboundId> connect(const PeerId& peer, std::span<const std::byte> offer,
                             std::span<const Region> regions) override;
  void close_outbound(OutboundId outbound) override;
  Status post(const Write& write) override;
  Status post_read(const Read& read) override;
  std::size_t poll(std::span<FabricEvent> out) override;
  bool busy() const override { return !told_.empty() || real_->busy(); }
  int wait_fd() const override { return real_->wait_fd(); }
  int second_wait_fd() const override { return timer_.get(); }

 private:
  using Operation = std::variant<Write, Read>;
  // What the real fabric would refuse, it must be refused before it waits.
  struct Outbound {
    RegionTable remote;
    bool open = false;  // connected, and not closed
  };

  PacedFabric(std::unique_ptr<Fabric> real, const Link& link, LinkMetrics& metrics, Clock clock,
              UniqueFd timer);
  void take_capabilities();
  Status take(const Operation& operation);
  Status check(const Operation& operation) const;
  bool is_full() const { return queue_.size() + in_flight_ >= capabilities_.writes_in_flight_max; }
  Status refuse(std::string_view why);
  Status forward(const Operation& operation);
  void move_queue(Time now);
  void fail_queued(OutboundId outbound, std::string_view why);
  bool on_event(FabricEvent& event);
  void wake_at(Time now, Time when);
  void timer_read();
  void note_turn(Time now);

  const std::unique_ptr<Fabric> real_;
  const Link link_options_;
  LinkMetrics& metrics_;
  const Clock clock_;
  Capabilities capabilities_;
  const UniqueFd timer_;
  RegionTable local_;
  std::unordered_map<std::uint32_t, Outbound> outbounds_;
  Pacer link_, posting_;
  ByteTime byte_time_;
  std::deque<Operation> queue_;   // posted, and waiting for the link
  std::deque<FabricEvent> told_;  // failures of these, and what of the real fabric comes after them
  std::uint64_t in_flight_ = 0;   // with the real fabric
  // Somebody posts, or tried to: until there were turns in which nobody did.
  bool in_demand_ = false;
  int missed_turns_ = 0;
  bool armed_ = false;
  Time armed_for_{};
};

}  // namespace baton::fabric::paced
