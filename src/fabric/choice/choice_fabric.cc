#include "fabric/choice/choice_fabric.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/boot_id.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "fabric/choice/menu.h"
#include "fabric/shm/shm_fabric.h"

namespace baton::fabric {
namespace {

using Kind = FabricEvent::Kind;

std::string_view name_of(Carrier carrier) {
  return carrier == Carrier::kShm ? "shm" : "libfabric";
}

class ChoiceFabric final : public Fabric {
 public:
  // `children` in order of preference.
  struct Child {
    Carrier carrier;
    std::unique_ptr<Fabric> fabric;
    // By the child's handles: ours.
    std::unordered_map<std::uint32_t, InboundId> inbounds{};
    std::unordered_map<std::uint32_t, OutboundId> outbounds{};
  };
  ChoiceFabric(std::string name, std::string host_id, std::vector<Child> children, UniqueFd epoll)
      : host_id_(std::move(host_id)), children_(std::move(children)), epoll_(std::move(epoll)) {
    capabilities_ = children_.front().fabric->capabilities();
    for (const Child& child : children_) weaken(child.fabric->capabilities());
    capabilities_.name = std::move(name);
  }

  const Capabilities& capabilities() const override { return capabilities_; }
  Status register_regions(std::span<const Region> regions) override;
  Result<Inbound> open_inbound(const PeerId& peer, Access access) override;
  void fence_inbound(InboundId inbound) override;
  std::string_view carrier_of(InboundId inbound) const override;
  Result<OutboundId> connect(const PeerId& receiver, std::span<const std::byte> offer,
                             std::span<const Region> regions) override;
  void close_outbound(OutboundId outbound) override;
  Status post(const Write& write) override {
    return post_to(write.to, [&](Fabric& child, OutboundId part) {
      Write turned = write;
      turned.to = part;
      return child.post(turned);
    });
  }
  Status post_read(const Read& read) override {
    return post_to(read.from, [&](Fabric& child, OutboundId part) {
      Read turned = read;
      turned.from = part;
      return child.post_read(turned);
    });
  }
  std::size_t poll(std::span<FabricEvent> out) override;
  bool busy() const override {
    return std::any_of(children_.begin(), children_.end(),
                       [](const Child& child) { return child.fabric->busy(); });
  }
  int wait_fd() const override {
    return epoll_ ? epoll_.get() : children_.front().fabric->wait_fd();
  }

 private:
  struct In {
    std::vector<std::optional<InboundId>> parts;  // one for each child; none: fenced
    bool asked_to_fence = false;
    bool over_shm = false;  // known of a part that is fenced
  };
  struct Out {
    PeerId receiver;
    std::vector<Region> regions;
    std::vector<Menu::Item> items;  // not tried yet, the next one last
    std::string why;                // those that were tried and failed
    Child* child = nullptr;
    OutboundId part;
    std::uint32_t in_flight = 0;
    bool connected = false;
    bool closing = false;
  };

  void weaken(const Capabilities& other);
  Result<std::vector<Menu::Item>> items_in(std::span<const std::byte> offer) const;
  Child* find_child(Carrier carrier);
  bool try_next(OutboundId id, Out& out);
  template <typename Post>
  Status post_to(OutboundId outbound, Post post);
  bool translate(Child& child, FabricEvent& event);
  bool translate_connect_failed(Child& child, FabricEvent& event);
  bool translate_fenced(Child& child, FabricEvent& event);

  Capabilities capabilities_;
  const std::string host_id_;
  std::vector<Child> children_;
  UniqueFd epoll_;
  std::size_t turn_ = 0;
  std::uint32_t next_id_ = 1;
  std::unordered_map<std::uint32_t, In> inbounds_;
  std::unordered_map<std::uint32_t, Out> outbounds_;
};

void ChoiceFabric::weaken(const Capabilities& other) {
  Capabilities& c = capabilities_;
  c.reads = c.reads && other.reads;
  c.delivery_complete = c.delivery_complete && other.delivery_complete;
  c.failed_writes_final = c.failed_writes_final && other.failed_writes_final;
  c.writes_in_flight_max = std::min(c.writes_in_flight_max, other.writes_in_flight_max);
  c.write_bytes_max = std::min(c.write_bytes_max, other.write_bytes_max);
  c.immediates_max = std::min(c.immediates_max, other.immediates_max);
}

Status ChoiceFabric::register_regions(std::span<const Region> regions) {
  for (const Child& child : children_) {
    if (Status ok = child.fabric->register_regions(regions); !ok) return ok;
  }
  return {};
}

// The half of the one that offers.

Result<Fabric::Inbound> ChoiceFabric::open_inbound(const PeerId& peer, Access access) {
  const InboundId id{next_id_++};
  In in;
  Menu menu;
  menu.host_id = host_id_;
  for (Child& child : children_) {
    Result<Inbound> part = child.fabric->open_inbound(peer, access);
    if (!part) {
      // The others go back: nobody has their offers. Without others no fence would end the row.
      if (in.parts.empty()) return part;
      inbounds_.emplace(id.value, std::move(in));
      fence_inbound(id);
      return part;
    }
    child.inbounds.emplace(part->id.value, id);
    in.parts.push_back(part->id);
    menu.items.push_back({child.carrier, std::move(part->offer)});
  }
  inbounds_.emplace(id.value, std::move(in));
  if (capabilities_.name != "auto") return Inbound{id, std::move(menu.items.front().offer)};
  Bytes offer = encode(menu);
  if (offer.size() <= kMenuBytesMax) return Inbound{id, std::move(offer)};
  fence_inbound(id);
  return fail(Errc::kInvalidArgument,
              fmt::format("an offer of {} bytes, at most {} fit", offer.size(), kMenuBytesMax));
}

void ChoiceFabric::fence_inbound(InboundId inbound) {
  const auto found = inbounds_.find(inbound.value);
  if (found == inbounds_.end()) return;
  In& in = found->second;
  in.over_shm = carrier_of(inbound) == name_of(Carrier::kShm);
  in.asked_to_fence = true;
  for (std::size_t i = 0; i < in.parts.size(); ++i) {
    if (in.parts[i]) children_[i].fabric->fence_inbound(*in.parts[i]);
  }
}

// shm knows who took its offer up; whoever did not uses the other one.
std::string_view ChoiceFabric::carrier_of(InboundId inbound) const {
  if (children_.size() == 1) return name_of(children_.front().carrier);
  const auto found = inbounds_.find(inbound.value);
  if (found == inbounds_.end()) return {};
  const In& in = found->second;
  for (std::size_t i = 0; i < in.parts.size(); ++i) {
    if (children_[i].carrier != Carrier::kShm) continue;
    const bool bound = in.parts[i] && !children_[i].fabric->carrier_of(*in.parts[i]).empty();
    if (bound || in.over_shm) return name_of(Carrier::kShm);
  }
  return name_of(Carrier::kLibfabric);
}

// The half of the one that connects.

ChoiceFabric::Child* ChoiceFabric::find_child(Carrier carrier) {
  const auto found = std::find_if(children_.begin(), children_.end(),
                                  [&](const Child& child) { return child.carrier == carrier; });
  return found == children_.end() ? nullptr : &*found;
}

// What of the offer this side can use, the first choice last.
Result<std::vector<Menu::Item>> ChoiceFabric::items_in(std::span<const std::byte> offer) const {
  std::vector<Menu::Item> items;
  if (!is_menu(offer)) {
    // Of a receiver that has one fabric; which one, its reader knows.
    for (auto child = children_.rbegin(); child != children_.rend(); ++child) {
      items.push_back({child->carrier, {offer.begin(), offer.end()}});
    }
    return items;
  }
  Result<Menu> menu = decode_menu(offer);
  if (!menu) return tl::unexpected(menu.error());
  const bool same_host = !host_id_.empty() && menu->host_id == host_id_;
  for (auto child = children_.rbegin(); child != children_.rend(); ++child) {
    if (child->carrier == Carrier::kShm && !same_host) continue;
    for (Menu::Item& item : menu->items) {
      if (item.carrier == child->carrier) items.push_back(std::move(item));
    }
  }
  if (!items.empty()) return items;
  return fail(Errc::kUnavailable,
              fmt::format("fabric is '{}' and nothing that the peer offers reaches it{}",
                          capabilities_.name, same_host ? "" : " (it is on another host)"));
}

Result<OutboundId> ChoiceFabric::connect(const PeerId& receiver, std::span<const std::byte> offer,
                                         std::span<const Region> regions) {
  Result<std::vector<Menu::Item>> items = items_in(offer);
  if (!items) return tl::unexpected(items.error());
  const OutboundId id{next_id_++};
  Out out;
  out.receiver = receiver;
  out.regions.assign(regions.begin(), regions.end());
  out.items = std::move(*items);
  if (!try_next(id, out)) return fail(Errc::kUnavailable, out.why);
  outbounds_.emplace(id.value, std::move(out));
  return id;
}

// False: nothing is left to try.
bool ChoiceFabric::try_next(OutboundId id, Out& out) {
  while (!out.items.empty()) {
    const Menu::Item item = std::move(out.items.back());
    out.items.pop_back();
    Child* child = find_child(item.carrier);
    const auto part = child->fabric->connect(out.receiver, item.offer, out.regions);
    if (part) {
      out.child = child;
      out.part = *part;
      child->outbounds.emplace(part->value, id);
      return true;
    }
    out.why += fmt::format("{}{}: {}", out.why.empty() ? "" : "; ", name_of(item.carrier),
                           part.error().message);
  }
  return false;
}

void ChoiceFabric::close_outbound(OutboundId outbound) {
  const auto found = outbounds_.find(outbound.value);
  if (found == outbounds_.end()) return;
  found->second.closing = true;
  found->second.child->fabric->close_outbound(found->second.part);
}

template <typename Post>
Status ChoiceFabric::post_to(OutboundId outbound, Post post) {
  const auto found = outbounds_.find(outbound.value);
  if (found == outbounds_.end() || !found->second.connected) {
    return fail(Errc::kNotFound, fmt::format("outbound {} is not open", outbound.value));
  }
  Out& out = found->second;
  if (out.in_flight == capabilities_.writes_in_flight_max) {
    return fail(
        Errc::kResourceExhausted,
        fmt::format("{} writes or reads are posted to outbound {}", out.in_flight, outbound.value));
  }
  Status status = post(*out.child->fabric, out.part);
  if (status) ++out.in_flight;
  return status;
}

// Polling.

std::size_t ChoiceFabric::poll(std::span<FabricEvent> out) {
  std::size_t kept = 0;
  turn_ = (turn_ + 1) % children_.size();  // whoever is first may fill `out`
  for (std::size_t i = 0; i < children_.size() && kept < out.size(); ++i) {
    Child& child = children_[(turn_ + i) % children_.size()];
    const std::size_t end = kept + child.fabric->poll(out.subspan(kept));
    for (std::size_t at = kept; at < end; ++at) {
      if (!translate(child, out[at])) continue;
      if (at != kept) out[kept] = std::move(out[at]);
      ++kept;
    }
  }
  return kept;
}

// Puts our handles for the child's. False: not for the user.
bool ChoiceFabric::translate(Child& child, FabricEvent& event) {
  if (event.kind == Kind::kImmediate) {
    event.inbound = child.inbounds.at(event.inbound.value);
    event.carrier = name_of(child.carrier);
    return true;
  }
  if (event.kind == Kind::kInboundFenced) return translate_fenced(child, event);
  if (event.kind == Kind::kConnectFailed) return translate_connect_failed(child, event);
  const OutboundId id = child.outbounds.at(event.outbound.value);
  if (event.kind == Kind::kOutboundClosed) {
    child.outbounds.erase(event.outbound.value);
    outbounds_.erase(id.value);
  } else if (event.kind == Kind::kConnected) {
    Out& out = outbounds_.at(id.value);
    out.connected = true;
    out.regions = {};
    out.items = {};
    event.carrier = name_of(child.carrier);
  } else {
    --outbounds_.at(id.value).in_flight;
    if (event.kind == Kind::kWriteFailed) {
      event.over = event.over || child.fabric->capabilities().failed_writes_final;
    }
  }
  event.outbound = id;
  return true;
}

bool ChoiceFabric::translate_connect_failed(Child& child, FabricEvent& event) {
  const OutboundId id = child.outbounds.at(event.outbound.value);
  child.outbounds.erase(event.outbound.value);
  Out& out = outbounds_.at(id.value);
  out.why +=
      fmt::format("{}{}: {}", out.why.empty() ? "" : "; ", name_of(child.carrier), event.error);
  if (!out.closing && try_next(id, out)) {
    log::info("{} cannot be reached over {}, trying {}: {}", out.receiver.to_string(),
              name_of(child.carrier), name_of(out.child->carrier), event.error);
    return false;
  }
  event.outbound = id;
  event.error = std::move(out.why);
  outbounds_.erase(id.value);
  return true;
}

// Fenced is who is fenced everywhere: a death that one child saw also ends what the others offered.
bool ChoiceFabric::translate_fenced(Child& child, FabricEvent& event) {
  const InboundId id = child.inbounds.at(event.inbound.value);
  child.inbounds.erase(event.inbound.value);
  In& in = inbounds_.at(id.value);
  // Unasked: a process died that held its memory.
  in.over_shm = in.over_shm || (child.carrier == Carrier::kShm && !in.asked_to_fence);
  in.parts[static_cast<std::size_t>(&child - children_.data())].reset();
  if (std::any_of(in.parts.begin(), in.parts.end(), [](const auto& p) { return p.has_value(); })) {
    fence_inbound(id);
    return false;
  }
  inbounds_.erase(id.value);
  event.inbound = id;
  return true;
}

Result<std::vector<ChoiceFabric::Child>> make_children(const Choice& choice) {
  std::vector<ChoiceFabric::Child> children;
  if (choice.fabric != "libfabric") {
    auto shm = shm::make_shm_fabric();
    if (!shm) return tl::unexpected(shm.error());
    children.push_back({Carrier::kShm, std::move(*shm)});
  }
  if (choice.fabric != "shm") {
    auto libfabric = libfabric::make_libfabric_fabric(choice.libfabric);
    if (!libfabric && children.empty()) return tl::unexpected(libfabric.error());
    if (libfabric) {
      children.push_back({Carrier::kLibfabric, std::move(*libfabric)});
    } else {
      log::warning("only peers on this host can be reached: {}", libfabric.error().message);
    }
  }
  return children;
}

}  // namespace

Result<std::unique_ptr<Fabric>> make_fabric(const Choice& choice) {
  if (choice.fabric != "auto" && choice.fabric != "shm" && choice.fabric != "libfabric") {
    return fail(Errc::kUnsupported, fmt::format("fabric is '{}', known are 'auto', 'shm' and "
                                                "'libfabric'",
                                                choice.fabric));
  }
  auto children = make_children(choice);
  if (!children) return tl::unexpected(children.error());
  UniqueFd epoll;
  if (children->size() > 1) {
    epoll.reset(::epoll_create1(EPOLL_CLOEXEC));
    for (const auto& child : *children) {
      epoll_event event{};
      event.events = EPOLLIN;
      if (!epoll || ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, child.fabric->wait_fd(), &event) != 0) {
        return fail(Errc::kIo, fmt::format("epoll: {}", std::strerror(errno)));
      }
    }
  }
  const std::string host_id = choice.host_id.empty() ? boot_id() : choice.host_id;
  return std::make_unique<ChoiceFabric>(choice.fabric, host_id, std::move(*children),
                                        std::move(epoll));
}

}  // namespace baton::fabric
