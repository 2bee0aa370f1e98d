#include "fabric/null/null_fabric.h"

#include <fmt/format.h>
#include <sys/eventfd.h>

#include <map>
#include <utility>

#include "base/unique_fd.h"
#include "fabric/access.h"
#include "fabric/byte_codec.h"
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
    capabilities_.reads = true;
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
  Result<Inbound> open_inbound(const PeerId&, Access access) override {
    ByteWriter offer;
    offer.put(access_word(access));
    return Inbound{InboundId{next_id_++}, offer.finish()};
  }
  void fence_inbound(InboundId inbound) override {
    events_.push(inbound_event(Kind::kInboundFenced, inbound));
  }
  Result<OutboundId> connect(const PeerId&, std::span<const std::byte> offer,
                             std::span<const Region> regions) override {
    const Result<Access> access =
        decode_access("offer", ByteReader::checked(offer).get<std::uint32_t>());
    if (!access) return tl::unexpected(access.error());
    Result<RegionTable> remote = RegionTable::make(regions);
    if (!remote) return tl::unexpected(remote.error());
    const OutboundId id{next_id_++};
    remotes_.emplace(id, Remote{*access, std::move(*remote)});
    events_.push(outbound_event(Kind::kConnected, id));
    return id;
  }
  void close_outbound(OutboundId outbound) override {
    if (remotes_.erase(outbound) == 1) {
      events_.push(outbound_event(Kind::kOutboundClosed, outbound));
    }
  }
  Status post(const Write& write) override { return post_as(Access::kWrite, write); }
  Status post_read(const Read& read) override { return post_as(Access::kRead, as_write(read)); }
  std::size_t poll(std::span<FabricEvent> out) override {
    std::size_t n = 0;
    for (; n < out.size() && !events_.empty(); ++n) {
      out[n] = events_.pop();
      if (out[n].kind == Kind::kWriteDone || out[n].kind == Kind::kReadDone) --in_flight_;
    }
    return n;
  }
  bool busy() const override { return !events_.empty(); }
  int wait_fd() const override { return never_ready_.get(); }

 private:
  struct Remote {
    Access access;
    RegionTable table;
  };

  Status post_as(Access access, const Write& op) {
    const auto remote = remotes_.find(op.to);
    if (remote == remotes_.end()) {
      return fail(Errc::kNotFound, fmt::format("outbound {} is not open", op.to.value));
    }
    if (Status ok = check_access(remote->second.access, access); !ok) return ok;
    if (Status ok = check_length(access, op.length, capabilities_.write_bytes_max); !ok) return ok;
    if (Status ok = table_.check("local", op.local_region, op.local_offset, op.length); !ok) {
      return ok;
    }
    if (Status ok =
            remote->second.table.check("remote", op.remote_region, op.remote_offset, op.length);
        !ok) {
      return ok;
    }
    if (in_flight_ == capabilities_.writes_in_flight_max) {
      return fail(Errc::kResourceExhausted, "the queue is full");
    }
    ++in_flight_;
    events_.push(done_event(access, op.to, op.context));
    return {};
  }

  Capabilities capabilities_;
  UniqueFd never_ready_;
  RegionTable table_;
  std::map<OutboundId, Remote> remotes_;
  EventRing events_;
  std::uint32_t in_flight_ = 0;
  std::uint32_t next_id_ = 1;
};

}  // namespace

std::unique_ptr<Fabric> make_null_fabric() {
  return std::make_unique<NullFabric>();
}

}  // namespace baton::fabric
