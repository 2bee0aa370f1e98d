#include "fabric/null/null_fabric.h"

#include <fmt/format.h>
#include <sys/eventfd.h>

#include <map>
#include <utility>

#include "base/unique_fd.h"
#include "fabric/event_ring.h"
#include "fabric/events.h"
#include "fabric/region_table.h"

namespace baton::fabric {
namespace {

using Kind = FabricEvent::Kind;

class NullFabric final : public Fabric {
 public:
  NullFabric() : never_ready_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    capabilities_.name = "null";
    capabilities_.delivery_complete = true;
    capabilities_.writes_in_flight_max = 1024;
    capabilities_.write_bytes_max = 1ULL << 40;
    capabilities_.immediates_max = 1U << 16;
  }

  const Capabilities& capabilities() const override { return capabilities_; }
  Status register_regions(std::span<const Region> regions) override {
    Result<RegionTable> table = RegionTable::make(regions);
    if (!table) return tl::unexpected(table.error());
    table_ = std::move(*table);
    return {};
  }
  Result<Inbound> open_inbound(const PeerId&) override {
    return Inbound{InboundId{next_id_++}, {}};
  }
  void fence_inbound(InboundId inbound) override {
    events_.push(inbound_event(Kind::kInboundFenced, inbound));
  }
  Result<OutboundId> connect(const PeerId&, std::span<const std::byte>,
                             std::span<const Region> regions) override {
    Result<RegionTable> remote = RegionTable::make(regions);
    if (!remote) return tl::unexpected(remote.error());
    const OutboundId id{next_id_++};
    remotes_.emplace(id, std::move(*remote));
    events_.push(outbound_event(Kind::kConnected, id));
    return id;
  }
  void close_outbound(OutboundId outbound) override {
    if (remotes_.erase(outbound) == 1) {
      events_.push(outbound_event(Kind::kOutboundClosed, outbound));
    }
  }
  Status post(const Write& write) override {
    const auto remote = remotes_.find(write.to);
    if (remote == remotes_.end()) {
      return fail(Errc::kNotFound,
                  fmt::format("outbound {} is not open for writes", write.to.value));
    }
    if (in_flight_ == capabilities_.writes_in_flight_max) {
      return fail(Errc::kResourceExhausted, "the queue is full");
    }
    if (Status ok = table_.check("local", write.local_region, write.local_offset, write.length);
        !ok) {
      return ok;
    }
    if (Status ok =
            remote->second.check("remote", write.remote_region, write.remote_offset, write.length);
        !ok) {
      return ok;
    }
    ++in_flight_;
    events_.push(write_event(Kind::kWriteDone, write.to, write.context));
    return {};
  }
  std::size_t poll(std::span<FabricEvent> out) override {
    std::size_t n = 0;
    for (; n < out.size() && !events_.empty(); ++n) {
      out[n] = events_.pop();
      if (out[n].kind == Kind::kWriteDone) --in_flight_;
    }
    return n;
  }
  bool busy() const override { return !events_.empty(); }
  int wait_fd() const override { return never_ready_.get(); }

 private:
  Capabilities capabilities_;
  UniqueFd never_ready_;
  RegionTable table_;
  std::map<OutboundId, RegionTable> remotes_;
  EventRing events_;
  std::uint32_t in_flight_ = 0;
  std::uint32_t next_id_ = 1;
};

}  // namespace

std::unique_ptr<Fabric> make_null_fabric() {
  return std::make_unique<NullFabric>();
}

}  // namespace baton::fabric
