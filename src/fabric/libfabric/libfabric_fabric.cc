#include "fabric/libfabric/libfabric_fabric.h"

#include <fmt/format.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/unique_fd.h"
#include "fabric/access.h"
#include "fabric/events.h"
#include "fabric/libfabric/device.h"
#include "fabric/libfabric/inbound.h"
#include "fabric/libfabric/outbound.h"
#include "fabric/region_table.h"

namespace baton::fabric::libfabric {
namespace {

constexpr std::size_t kInboundsMax = 4096;
constexpr std::size_t kOutboundsMax = 4096;
constexpr std::size_t kEventsHigh =
    16384;  // unpolled; beyond it nothing moves until some are taken
// Where no descriptor tells: between two looks while a connection is made or the provider takes no
// more writes, and, without wait objects, while anybody may write here.
constexpr auto kLook = std::chrono::microseconds(500);

tl::unexpected<Error> refused(const char* call) {
  return fail(Errc::kIo, fmt::format("{}: {}", call, std::strerror(errno)));
}

class LibfabricFabric final : public Fabric {
 public:
  LibfabricFabric(std::unique_ptr<Device> device, std::chrono::milliseconds connect_timeout,
                  UniqueFd epoll, UniqueFd timer)
      : device_(std::move(device)),
        connect_timeout_(connect_timeout),
        epoll_(std::move(epoll)),
        timer_(std::move(timer)) {
    const Traits& traits = device_->traits();
    capabilities_.name = "libfabric";
    capabilities_.reads = traits.reads;
    capabilities_.delivery_complete = traits.delivery_complete;
    capabilities_.failed_writes_final = false;  // what a socket or a card buffers still arrives
    capabilities_.writes_in_flight_max = traits.queue;
    capabilities_.write_bytes_max = traits.write_bytes_max;
    capabilities_.immediates_max = In::kQueue;
  }

  const Capabilities& capabilities() const override { return capabilities_; }
  Status register_regions(std::span<const Region> regions) override;
  Result<Fabric::Inbound> open_inbound(const PeerId& peer, Access access) override;
  void fence_inbound(InboundId inbound) override;
  Result<OutboundId> connect(const PeerId& peer, std::span<const std::byte> offer,
                             std::span<const Region> regions) override;
  void close_outbound(OutboundId outbound) override;
  Status post(const Write& write) override { return post_as(Access::kWrite, write); }
  Status post_read(const Read& read) override { return post_as(Access::kRead, as_write(read)); }
  std::size_t poll(std::span<FabricEvent> out) override;
  bool busy() const override;
  int wait_fd() const override { return epoll_.get(); }

 private:
  using In = libfabric::Inbound;

  tl::unexpected<Error> no_reads() const;
  Status post_as(Access access, const Write& op);
  Status watch(const Endpoint& endpoint);
  void unwatch(const Endpoint& endpoint);
  void look_at_queues();
  void expire(Outbound& outbound, Time time);
  void drop_ended();
  void set_timer();

  Capabilities capabilities_;
  std::unique_ptr<Device> device_;
  std::chrono::milliseconds connect_timeout_;
  UniqueFd epoll_;
  UniqueFd timer_;
  bool timer_runs_ = false;
  EventRing events_;
  std::uint32_t next_id_ = 1;

  RegionTable table_;
  std::vector<std::span<std::byte>> regions_;
  std::vector<Fid<fid_mr>> local_keys_;   // empty where the provider wants none
  std::vector<void*> local_descriptors_;  // likewise null

  std::unordered_map<std::uint32_t, std::unique_ptr<In>> inbounds_;
  std::unordered_map<std::uint32_t, std::unique_ptr<Outbound>> outbounds_;
  Outbound* last_posted_ = nullptr;
  bool may_hold_more_ = false;  // a queue was not read to its end
};

Status LibfabricFabric::register_regions(std::span<const Region> regions) {
  for (const Region& region : regions) {
    if (region.kind != MemoryKind::kHost && device_->traits().provider == "efa" &&
        FI_VERSION_LT(fi_version(), FI_VERSION(1, 18))) {
      return fail(
          Errc::kUnsupported,
          fmt::format("region {}: device memory over efa needs libfabric 1.18, this is {}.{}",
                      region.name, FI_MAJOR(fi_version()), FI_MINOR(fi_version())));
    }
  }
  Result<RegionTable> table = RegionTable::make(regions);
  if (!table) return tl::unexpected(table.error());
  if (regions.size() > kPlacesMax) {
    return fail(Errc::kInvalidArgument,
                fmt::format("regions: {} given, an offer of {} bytes has room for {}",
                            regions.size(), kOfferBytesMax, kPlacesMax));
  }
  std::vector<std::span<std::byte>> places;
  std::vector<Fid<fid_mr>> keys;
  std::vector<void*> descriptors;
  for (std::size_t i = 0; i < regions.size(); ++i) {
    if (regions[i].base == nullptr) {
      return fail(Errc::kInvalidArgument,
                  fmt::format("region {} ({}): base is null", i, regions[i].name));
    }
    places.emplace_back(regions[i].base, table->length(i));
    if (!device_->traits().local_keys) {
      descriptors.push_back(nullptr);
      continue;
    }
    auto key = device_->register_memory(device_->domain(), places.back(), Device::Use::kLocal);
    if (!key) return tl::unexpected(key.error());
    descriptors.push_back(fi_mr_desc(key->get()));
    keys.push_back(std::move(*key));
  }
  table_ = std::move(*table);
  regions_ = std::move(places);
  local_keys_ = std::move(keys);
  local_descriptors_ = std::move(descriptors);
  return {};
}

// The half of the one that offers.

Result<Fabric::Inbound> LibfabricFabric::open_inbound(const PeerId& peer, Access access) {
  if (access == Access::kRead && !capabilities_.reads) {
    return no_reads();
  }
  if (inbounds_.size() >= kInboundsMax) {
    return fail(Errc::kResourceExhausted,
                fmt::format("{} inbounds are open, the most allowed", kInboundsMax));
  }
  const InboundId id{next_id_++};
  Result<std::unique_ptr<In>> inbound = In::open(id, access, *device_, regions_);
  if (!inbound) {
    return fail(inbound.error().code,
                fmt::format("an endpoint for {}: {}", peer.to_string(), inbound.error().message));
  }
  if (Status ok = watch((*inbound)->endpoint()); !ok) return tl::unexpected(ok.error());
  Bytes offer = (*inbound)->offer();
  inbounds_.emplace(id.value, std::move(*inbound));
  set_timer();
  return Fabric::Inbound{id, std::move(offer)};
}

void LibfabricFabric::fence_inbound(InboundId id) {
  const auto found = inbounds_.find(id.value);
  if (found == inbounds_.end()) return;
  unwatch(found->second->endpoint());
  found->second->fence(events_);
  inbounds_.erase(found);
  events_.push(inbound_event(FabricEvent::Kind::kInboundFenced, id));
}

// The half of the one that connects.

Result<OutboundId> LibfabricFabric::connect(const PeerId& peer, std::span<const std::byte> offer,
                                            std::span<const Region> regions) {
  Result<Offer> decoded = decode_offer(offer);
  if (!decoded) return tl::unexpected(decoded.error());
  Result<RegionTable> remote = RegionTable::make(regions);
  if (!remote) return tl::unexpected(remote.error());
  if (outbounds_.size() >= kOutboundsMax) {
    return fail(Errc::kResourceExhausted,
                fmt::format("{} outbounds are open, the most allowed", kOutboundsMax));
  }
  const OutboundId id{next_id_++};
  auto outbound = Outbound::start(id, *device_, std::move(*decoded), std::move(*remote), events_);
  if (!outbound) {
    events_.push(outbound_event(FabricEvent::Kind::kConnectFailed, id,
                                fmt::format("{}: {}", peer.to_string(), outbound.error().message)));
    return id;
  }
  if ((*outbound)->ended()) return id;  // and has said so
  if (Status ok = watch((*outbound)->endpoint()); !ok) return tl::unexpected(ok.error());
  outbounds_.emplace(id.value, std::move(*outbound));
  set_timer();
  return id;
}

void LibfabricFabric::close_outbound(OutboundId id) {
  const auto found = outbounds_.find(id.value);
  if (found == outbounds_.end()) return;
  found->second->end({});
  drop_ended();
}

tl::unexpected<Error> LibfabricFabric::no_reads() const {
  return fail(Errc::kUnsupported,
              fmt::format("fabric provider {} has no reads: {}", device_->traits().provider,
                          device_->traits().why_no_reads));
}

Status LibfabricFabric::post_as(Access access, const Write& op) {
  if (access == Access::kRead && !capabilities_.reads) {
    return no_reads();
  }
  if (last_posted_ == nullptr || last_posted_->id() != op.to) {
    const auto found = outbounds_.find(op.to.value);
    if (found == outbounds_.end()) {
      return fail(Errc::kNotFound, fmt::format("outbound {} is not open", op.to.value));
    }
    last_posted_ = found->second.get();
  }
  if (Status ok = check_access(last_posted_->access(), access); !ok) return ok;
  if (Status ok = table_.check("local", op.local_region, op.local_offset, op.length); !ok) {
    return ok;
  }
  if (Status ok = check_length(access, op.length, capabilities_.write_bytes_max); !ok) return ok;
  if (op.length == 0) return last_posted_->post(op, nullptr, nullptr);
  return last_posted_->post(op, regions_[op.local_region].data() + op.local_offset,
                            local_descriptors_[op.local_region]);
}

// Polling.

std::size_t LibfabricFabric::poll(std::span<FabricEvent> out) {
  if (events_.size() < kEventsHigh) look_at_queues();
  std::size_t n = 0;
  while (n < out.size() && !events_.empty()) out[n++] = events_.pop();
  return n;
}

void LibfabricFabric::look_at_queues() {
  may_hold_more_ = false;
  for (auto& [id, inbound] : inbounds_) {
    if (inbound->read(events_)) may_hold_more_ = true;
  }
  bool ended = false;
  const Time time = timer_runs_ ? now() : Time{};
  for (auto& [id, outbound] : outbounds_) {
    if (outbound->work()) may_hold_more_ = true;
    if (timer_runs_) expire(*outbound, time);
    ended = ended || outbound->ended();
  }
  if (ended) drop_ended();
  set_timer();
}

void LibfabricFabric::expire(Outbound& outbound, Time time) {
  if (outbound.ended() || outbound.connecting_since() == kNever) return;
  if (time - outbound.connecting_since() < connect_timeout_) return;
  outbound.end(
      fmt::format("the peer's endpoint did not answer within {} ms", connect_timeout_.count()));
}

void LibfabricFabric::drop_ended() {
  std::erase_if(outbounds_, [this](const auto& entry) {
    Outbound& outbound = *entry.second;
    if (!outbound.ended()) return false;
    unwatch(outbound.endpoint());
    if (last_posted_ == &outbound) last_posted_ = nullptr;
    return true;
  });
}

bool LibfabricFabric::busy() const {
  if (!events_.empty() || may_hold_more_) return true;
  if (!device_->traits().waits) return false;
  const auto awake = [](const auto& entry) { return !entry.second->endpoint().may_sleep(); };
  return std::any_of(inbounds_.begin(), inbounds_.end(), awake) ||
         std::any_of(outbounds_.begin(), outbounds_.end(), awake);
}

Status LibfabricFabric::watch(const Endpoint& endpoint) {
  if (endpoint.wait_fd() < 0) return {};
  epoll_event event{};
  event.events = EPOLLIN;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, endpoint.wait_fd(), &event) != 0) {
    return refused("epoll_ctl");
  }
  return {};
}

void LibfabricFabric::unwatch(const Endpoint& endpoint) {
  if (endpoint.wait_fd() < 0) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, endpoint.wait_fd(), nullptr);
}

void LibfabricFabric::set_timer() {
  const bool polls = !device_->traits().waits && (!inbounds_.empty() || !outbounds_.empty());
  const bool wanted =
      polls || std::any_of(outbounds_.begin(), outbounds_.end(), [](const auto& entry) {
        return entry.second->connecting_since() != kNever || entry.second->stalled();
      });
  if (timer_runs_) {
    std::uint64_t ticks = 0;
    static_cast<void>(::read(timer_.get(), &ticks, sizeof ticks));
  }
  if (wanted == timer_runs_) return;
  timer_runs_ = wanted;
  itimerspec spec{};
  spec.it_interval.tv_nsec = wanted ? std::chrono::nanoseconds(kLook).count() : 0;
  spec.it_value = spec.it_interval;
  ::timerfd_settime(timer_.get(), 0, &spec, nullptr);
}

}  // namespace

Result<std::unique_ptr<Fabric>> make_libfabric_fabric(const Options& options) {
  auto device = Device::open(options);
  if (!device) return tl::unexpected(device.error());
  // An address that is nobody's here shows when an endpoint is bound to it: now, not with the first
  // peer.
  if (const auto trial = Endpoint::open(**device, 8); !trial) {
    return fail(trial.error().code,
                fmt::format("fabric address '{}': {}", options.address, trial.error().message));
  }
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return refused("epoll_create1");
  UniqueFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer) return refused("timerfd_create");
  epoll_event event{};
  event.events = EPOLLIN;
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, timer.get(), &event) != 0)
    return refused("epoll_ctl");
  return std::make_unique<LibfabricFabric>(std::move(*device), options.connect_timeout,
                                           std::move(epoll), std::move(timer));
}

}  // namespace baton::fabric::libfabric
