#include "fabric/sim/sim_core.h"

#include <fmt/format.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "fabric/access.h"
#include "fabric/events.h"

namespace baton::fabric::sim {
namespace {

constexpr std::uint64_t kOfferMagic = 0x324d4953'4e544142ULL;  // "BATNSIM2"

struct Offer {
  std::uint64_t magic = kOfferMagic;
  std::uint64_t token = 0;
  EndpointKey endpoint = 0;
  std::uint32_t inbound = 0;
  std::uint32_t access = 0;  // access_word()
  std::uint32_t reserved = 0;
};

}  // namespace

Network::Core::Core(std::uint64_t seed, const Options& options) : rng_(seed), options_(options) {
  capabilities_.name = "sim";
  capabilities_.reads = options.reads;
  capabilities_.delivery_complete = options.delivery_complete;
  capabilities_.failed_writes_final = options.failed_writes_final;
  capabilities_.writes_in_flight_max = options.writes_in_flight_max;
  capabilities_.write_bytes_max = options.write_bytes_max;
  capabilities_.immediates_max = options.immediates_max;
}

EndpointKey Network::Core::add_endpoint(const PeerId& self) {
  const EndpointKey key = next_endpoint_++;
  endpoints_[key].self = self;
  return key;
}

std::optional<EndpointKey> Network::Core::find_alive(const PeerId& self) const {
  for (const auto& [key, endpoint] : endpoints_) {
    if (endpoint.alive && endpoint.self == self) return key;
  }
  return std::nullopt;
}

// The port.

Status Network::Core::register_regions(EndpointKey key, std::span<const Region> regions) {
  Result<RegionTable> table = RegionTable::make(regions);
  if (!table) return tl::unexpected(table.error());
  EndpointState& endpoint = endpoints_.at(key);
  endpoint.table = std::move(*table);
  endpoint.bases.clear();
  for (const Region& region : regions) {
    if (region.base == nullptr) {
      return fail(Errc::kInvalidArgument, fmt::format("region {}: base is null", region.name));
    }
    endpoint.bases.push_back(region.base);
  }
  return {};
}

Result<Fabric::Inbound> Network::Core::open_inbound(EndpointKey key, const PeerId& peer,
                                                    Access access) {
  EndpointState& endpoint = endpoints_.at(key);
  if (!endpoint.alive) return fail(Errc::kUnavailable, "this endpoint crashed");
  if (access == Access::kRead && !options_.reads) {
    return fail(Errc::kUnsupported, "this fabric has no reads");
  }
  const std::uint32_t id = next_handle_++;
  Offer offer;
  offer.token = rng_.next();
  offer.endpoint = key;
  offer.inbound = id;
  offer.access = access_word(access);
  endpoint.inbounds[id] = {peer, access, offer.token, false, std::nullopt};
  Fabric::Inbound inbound{InboundId{id}, Bytes(sizeof offer)};
  std::memcpy(inbound.offer.data(), &offer, sizeof offer);
  return inbound;
}

void Network::Core::fence_inbound(EndpointKey key, InboundId inbound) {
  EndpointState& endpoint = endpoints_.at(key);
  const auto found = endpoint.inbounds.find(inbound.value);
  if (found == endpoint.inbounds.end() || found->second.fence_asked) return;
  found->second.fence_asked = true;
  if (!found->second.connection || options_.fence_on_request) {
    schedule(options_.fence,
             {.kind = Action::Kind::kFence, .endpoint = key, .id = inbound.value, .link = {}});
  }
}

Result<OutboundId> Network::Core::connect(EndpointKey key, const PeerId& peer,
                                          std::span<const std::byte> offer_bytes,
                                          std::span<const Region> regions) {
  EndpointState& endpoint = endpoints_.at(key);
  if (!endpoint.alive) return fail(Errc::kUnavailable, "this endpoint crashed");
  Offer offer;
  if (offer_bytes.size() != sizeof offer) {
    return fail(Errc::kCorrupt,
                fmt::format("offer: {} bytes, expected {}", offer_bytes.size(), sizeof offer));
  }
  std::memcpy(&offer, offer_bytes.data(), sizeof offer);
  if (offer.magic != kOfferMagic) return fail(Errc::kCorrupt, "offer: not one of this fabric");
  if (offer.reserved != 0) {
    return fail(Errc::kCorrupt,
                fmt::format("offer: the reserved field is {}, expected 0", offer.reserved));
  }
  const Result<Access> access = decode_access("offer", offer.access);
  if (!access) return tl::unexpected(access.error());
  Result<RegionTable> remote = RegionTable::make(regions);
  if (!remote) return tl::unexpected(remote.error());
  const std::uint32_t id = next_handle_++;
  OutboundState& outbound = endpoint.outbounds[id];
  outbound.peer = peer;
  outbound.access = *access;
  outbound.remote = std::move(*remote);
  outbound.target = offer.endpoint;
  outbound.inbound = offer.inbound;
  outbound.token = offer.token;
  schedule(
      options_.connect,
      {.kind = Action::Kind::kConnect, .endpoint = key, .id = id, .link = {endpoint.self, peer}});
  return OutboundId{id};
}

void Network::Core::close_outbound(EndpointKey key, OutboundId id) {
  EndpointState& endpoint = endpoints_.at(key);
  const auto found = endpoint.outbounds.find(id.value);
  if (found == endpoint.outbounds.end()) return;
  found->second.closing = true;
  // What is posted is over soon, done or not; what failed may still land.
  break_outbound(key, id.value, {});
  close_if_idle(key, id.value, found->second);
}

Result<OutboundState*> Network::Core::find_open(EndpointKey key, Access access, const Write& op) {
  EndpointState& endpoint = endpoints_.at(key);
  if (!endpoint.alive) return fail(Errc::kUnavailable, "this endpoint crashed");
  const auto found = endpoint.outbounds.find(op.to.value);
  if (found == endpoint.outbounds.end() || !found->second.connected || found->second.closing) {
    return fail(Errc::kNotFound, fmt::format("outbound {} is not open", op.to.value));
  }
  OutboundState& outbound = found->second;
  for (const Status& ok :
       {check_access(outbound.access, access),
        check_length(access, op.length, options_.write_bytes_max),
        endpoint.table.check("local", op.local_region, op.local_offset, op.length),
        outbound.remote.check("remote", op.remote_region, op.remote_offset, op.length)}) {
    if (!ok) return tl::unexpected(ok.error());
  }
  if (endpoint.in_flight >= options_.writes_in_flight_max) {
    return fail(Errc::kResourceExhausted, fmt::format("{} writes and reads are in flight, the most "
                                                      "allowed",
                                                      endpoint.in_flight));
  }
  return &outbound;
}

bool Network::Core::draw_failure(std::map<Link, std::uint32_t>& forced, const Link& link) {
  const bool drawn = rng_.below(1000) < options_.write_failures_per_1000;
  const auto found = forced.find(link);
  if (found == forced.end() || found->second == 0) return drawn;
  --found->second;
  return true;
}

Status Network::Core::post(EndpointKey key, const Write& write) {
  const Result<OutboundState*> found = find_open(key, Access::kWrite, write);
  if (!found) return tl::unexpected(found.error());
  EndpointState& endpoint = endpoints_.at(key);
  OutboundState& outbound = **found;
  ++endpoint.in_flight;
  ++outbound.in_flight;
  ++stats_.writes_posted;
  const WriteKey write_key = next_write_++;
  WriteState& state = writes_[write_key];
  state.from = key;
  state.target = outbound.target;
  state.inbound = outbound.inbound;
  state.link = {endpoint.self, outbound.peer};
  state.write = write;
  state.fails = draw_failure(to_fail_, state.link);
  schedule_landing(write_key, state);
  if ((!options_.delivery_complete || state.fails) && !state.completion_scheduled) {
    schedule_completion(write_key, state);
  }
  return {};
}

std::size_t Network::Core::poll(EndpointKey key, std::span<FabricEvent> out) {
  EndpointState& endpoint = endpoints_.at(key);
  std::size_t n = 0;
  while (n < out.size() && !endpoint.events.empty()) {
    if (endpoint.events.front().kind == FabricEvent::Kind::kImmediate)
      --endpoint.immediates_waiting;
    out[n++] = std::move(endpoint.events.front());
    endpoint.events.pop_front();
  }
  if (endpoint.event_fd && endpoint.events.empty()) {
    std::uint64_t count = 0;
    (void)!::read(endpoint.event_fd.get(), &count, sizeof count);
  }
  return n;
}

int Network::Core::wait_fd(EndpointKey key) {
  EndpointState& endpoint = endpoints_.at(key);
  if (!endpoint.event_fd) {
    endpoint.event_fd.reset(::eventfd(endpoint.events.empty() ? 0 : 1, EFD_NONBLOCK | EFD_CLOEXEC));
  }
  return endpoint.event_fd.get();
}

// What happens.

Duration Network::Core::draw(const Delay& delay) {
  const auto span =
      static_cast<std::uint64_t>(std::max<Duration::rep>((delay.max - delay.min).count(), 0));
  return delay.min + Duration(static_cast<Duration::rep>(rng_.below(span + 1)));
}

void Network::Core::schedule(const Delay& delay, Action action) {
  const Time due = now_ + draw(delay);
  if (action.link != Link{}) {
    if (const auto held = held_.find(action.link); held != held_.end()) {
      held->second.push_back(std::move(action));
      return;
    }
  }
  actions_.emplace(ActionKey{due, next_action_++}, std::move(action));
}

void Network::Core::run(Actions::iterator at) {
  now_ = std::max(now_, at->first.first);
  const Action action = std::move(at->second);
  actions_.erase(at);
  ++stats_.actions;
  switch (action.kind) {
    case Action::Kind::kConnect:
      act_connect(action);
      break;
    case Action::Kind::kLand:
      act_land(action);
      break;
    case Action::Kind::kImmediate:
      act_immediate(action);
      break;
    case Action::Kind::kComplete:
      act_complete(action);
      break;
    case Action::Kind::kTake:
      act_take(action);
      break;
    case Action::Kind::kLandRead:
      act_land_read(action);
      break;
    case Action::Kind::kCompleteRead:
      act_complete_read(action);
      break;
    case Action::Kind::kClosed:
      act_closed(action);
      break;
    case Action::Kind::kFence:
      do_fence(action.endpoint, action.id);
      break;
  }
}

void Network::Core::act_connect(const Action& action) {
  EndpointState& endpoint = endpoints_.at(action.endpoint);
  const auto found = endpoint.outbounds.find(action.id);
  if (!endpoint.alive || found == endpoint.outbounds.end() || found->second.closing) return;
  OutboundState& outbound = found->second;
  const auto refuse = [&](std::string why) {
    connect_failed(action.endpoint, action.id, std::move(why));
  };
  const auto target = endpoints_.find(outbound.target);
  if (target == endpoints_.end() || !target->second.alive) return refuse("nobody listens there");
  if (target->second.self != outbound.peer) return refuse("the offer is another peer's");
  const auto inbound = target->second.inbounds.find(outbound.inbound);
  if (inbound == target->second.inbounds.end()) return refuse("the offer is void");
  if (inbound->second.token != outbound.token) return refuse("the token is wrong");
  if (inbound->second.access != outbound.access) {
    return refuse(fmt::format("the offer grants {}, it was used for {}",
                              name_of(inbound->second.access), name_of(outbound.access)));
  }
  if (inbound->second.peer != endpoint.self) return refuse("the offer was made to another peer");
  if (inbound->second.fence_asked) return refuse("the offer was taken back");
  const RegionTable& theirs = target->second.table;
  if (theirs.size() != outbound.remote.size()) {
    return refuse(
        fmt::format("regions: told {}, the peer has {}", outbound.remote.size(), theirs.size()));
  }
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    if (theirs.length(i) != outbound.remote.length(i)) {
      return refuse(fmt::format("region {}: told {} bytes, the peer has {}", i,
                                outbound.remote.length(i), theirs.length(i)));
    }
  }
  if (rng_.below(1000) < options_.connect_failures_per_1000)
    return refuse("the connection was refused");
  if (const auto old = inbound->second.connection) {
    break_outbound(old->first, old->second, "replaced by a newer connection");
  }
  inbound->second.connection = {action.endpoint, action.id};
  outbound.connected = true;
  push(action.endpoint, outbound_event(FabricEvent::Kind::kConnected, OutboundId{action.id}));
}

bool Network::Core::is_over(const WriteState& write) const {
  return options_.failed_writes_final && write.fails && write.completed;
}

void Network::Core::act_land(const Action& action) {
  WriteState& write = writes_.at(action.write);
  if (is_over(write)) return release(action.write, write);
  const EndpointState& target = endpoints_.at(write.target);
  const std::byte* source =
      write.copied_out
          ? write.copy.data()
          : endpoints_.at(write.from).bases[write.write.local_region] + write.write.local_offset;
  std::byte* destination = target.bases[write.write.remote_region] + write.write.remote_offset;
  std::memcpy(destination + action.offset, source + action.offset, action.length);
  stats_.bytes_landed += action.length;
  --write.pieces_to_land;
  if (write.pieces_to_land == 0) landed_all(action.write, write);
  release(action.write, write);
}

void Network::Core::landed_all(WriteKey key, WriteState& write) {
  // A failed write that landed wholly may tell its receiver so, or not.
  if (write.write.immediate && (!write.fails || rng_.chance(1, 2))) {
    ++write.actions;
    schedule(options_.immediate,
             {.kind = Action::Kind::kImmediate, .write = key, .link = write.link});
  }
  if (!write.completion_scheduled) schedule_completion(key, write);
}

void Network::Core::act_immediate(const Action& action) {
  WriteState& write = writes_.at(action.write);
  if (is_over(write)) return release(action.write, write);
  EndpointState& target = endpoints_.at(write.target);
  if (target.immediates_waiting >= options_.immediates_max) {
    ++stats_.immediates_overrun;
  } else {
    ++target.immediates_waiting;
    ++stats_.immediates_delivered;
    push(write.target, inbound_event(FabricEvent::Kind::kImmediate, InboundId{write.inbound},
                                     *write.write.immediate));
  }
  release(action.write, write);
}

void Network::Core::act_complete(const Action& action) {
  WriteState& write = writes_.at(action.write);
  copy_out(write);
  write.completed = true;
  EndpointState& endpoint = endpoints_.at(write.from);
  if (!endpoint.alive) return release(action.write, write);  // landed after its writer died
  OutboundState& outbound = endpoint.outbounds.at(write.write.to.value);
  --endpoint.in_flight;
  --outbound.in_flight;
  std::string error;
  if (write.fails) error = outbound.error.empty() ? "the write failed" : outbound.error;
  push(write.from,
       write_event(write.fails ? FabricEvent::Kind::kWriteFailed : FabricEvent::Kind::kWriteDone,
                   write.write.to, write.write.context, std::move(error)));
  close_if_idle(write.from, write.write.to.value, outbound);
  release(action.write, write);
}

void Network::Core::act_closed(const Action& action) {
  EndpointState& endpoint = endpoints_.at(action.endpoint);
  const auto found = endpoint.outbounds.find(action.id);
  if (found == endpoint.outbounds.end()) return;
  // What it wrote may land until the fence; what it read lands no more.
  purge([&](const Action& pending) {
    if (pending.read == 0) return false;
    const ReadState& read = reads_.at(pending.read);
    return read.from == action.endpoint && read.read.from.value == action.id;
  });
  push(action.endpoint, outbound_event(FabricEvent::Kind::kOutboundClosed, OutboundId{action.id},
                                       found->second.error));
  endpoint.outbounds.erase(found);
}

void Network::Core::push(EndpointKey key, FabricEvent event) {
  EndpointState& endpoint = endpoints_.at(key);
  if (!endpoint.alive) return;
  endpoint.events.push_back(std::move(event));
  if (endpoint.event_fd && endpoint.events.size() == 1) {
    const std::uint64_t one = 1;
    (void)!::write(endpoint.event_fd.get(), &one, sizeof one);
  }
}

void Network::Core::schedule_landing(WriteKey key, WriteState& write) {
  const std::uint64_t length = write.write.length;
  const std::uint64_t most = std::min<std::uint64_t>(std::max(options_.pieces_max, 1U), length);
  const std::uint64_t pieces = length == 0 ? 0 : 1 + rng_.below(most);
  write.pieces_total = static_cast<std::uint32_t>(pieces);
  write.pieces_to_land = write.pieces_total;
  // A completion in error says nothing about the bytes: each piece lands or not.
  std::uint64_t offset = 0;
  for (std::uint64_t i = 0; i < pieces; ++i) {
    const std::uint64_t end = length * (i + 1) / pieces;
    if (!write.fails || rng_.chance(1, 2)) {
      ++write.actions;
      schedule(options_.landing, {.kind = Action::Kind::kLand,
                                  .write = key,
                                  .piece = static_cast<std::uint32_t>(i),
                                  .offset = offset,
                                  .length = end - offset,
                                  .link = write.link});
    }
    offset = end;
  }
  if (pieces == 0) landed_all(key, write);
}

void Network::Core::schedule_completion(WriteKey key, WriteState& write) {
  BATON_CHECK(!write.completion_scheduled);
  write.completion_scheduled = true;
  ++write.actions;
  schedule(options_.completion, {.kind = Action::Kind::kComplete, .write = key, .link = {}});
}

void Network::Core::copy_out(WriteState& write) {
  if (write.copied_out || write.pieces_to_land == 0) return;
  const std::byte* source =
      endpoints_.at(write.from).bases[write.write.local_region] + write.write.local_offset;
  write.copy.assign(source, source + write.write.length);
  write.copied_out = true;
}

void Network::Core::release(WriteKey key, WriteState& write) {
  BATON_CHECK(write.actions > 0);
  if (--write.actions == 0 && (write.completed || !endpoints_.at(write.from).alive))
    writes_.erase(key);
}

void Network::Core::break_outbound(EndpointKey key, std::uint32_t id, const std::string& why) {
  EndpointState& endpoint = endpoints_.at(key);
  const auto found = endpoint.outbounds.find(id);
  if (!endpoint.alive || found == endpoint.outbounds.end()) return;
  OutboundState& outbound = found->second;
  if (!outbound.connected) return;
  outbound.closing = true;
  if (outbound.error.empty()) outbound.error = why;
  for (auto& [write_key, write] : writes_) {
    if (write.from != key || write.write.to.value != id || write.completed) continue;
    if (write.completion_scheduled) continue;
    write.fails = true;
    schedule_completion(write_key, write);
  }
  break_reads(key, id);
  close_if_idle(key, id, outbound);
}

void Network::Core::close_if_idle(EndpointKey key, std::uint32_t id, OutboundState& outbound) {
  if (!outbound.closing || outbound.in_flight > 0 || outbound.close_scheduled) return;
  outbound.close_scheduled = true;
  schedule(options_.completion,
           {.kind = Action::Kind::kClosed, .endpoint = key, .id = id, .link = {}});
}

void Network::Core::connect_failed(EndpointKey key, std::uint32_t id, std::string why) {
  endpoints_.at(key).outbounds.erase(id);
  push(key, outbound_event(FabricEvent::Kind::kConnectFailed, OutboundId{id}, std::move(why)));
}

template <typename Predicate>
void Network::Core::purge(Predicate doomed) {
  const auto drop = [&](const Action& action) {
    if (!doomed(action)) return false;
    if (action.write != 0) {
      if (action.kind == Action::Kind::kLand) stats_.bytes_dropped += action.length;
      release(action.write, writes_.at(action.write));
    }
    if (action.read != 0) release(action.read, reads_.at(action.read));
    return true;
  };
  std::erase_if(actions_, [&](const auto& entry) { return drop(entry.second); });
  for (auto& [link, actions] : held_) std::erase_if(actions, drop);
}

void Network::Core::do_fence(EndpointKey key, std::uint32_t id) {
  EndpointState& endpoint = endpoints_.at(key);
  const auto found = endpoint.inbounds.find(id);
  if (!endpoint.alive || found == endpoint.inbounds.end()) return;
  purge([&](const Action& action) {
    if (action.kind == Action::Kind::kFence) return action.endpoint == key && action.id == id;
    if (action.kind == Action::Kind::kTake) {
      const ReadState& read = reads_.at(action.read);
      return read.source == key && read.inbound == id;
    }
    if (action.kind != Action::Kind::kLand && action.kind != Action::Kind::kImmediate) return false;
    const WriteState& write = writes_.at(action.write);
    return write.target == key && write.inbound == id;
  });
  if (const auto peer = found->second.connection) {
    break_outbound(peer->first, peer->second, "fenced by the peer");
  }
  endpoint.inbounds.erase(found);
  push(key, inbound_event(FabricEvent::Kind::kInboundFenced, InboundId{id}));
}

void Network::Core::crash(EndpointKey key) {
  EndpointState& endpoint = endpoints_.at(key);
  if (!endpoint.alive) return;
  for (auto& [write_key, write] : writes_) {
    if (write.from == key) copy_out(write);
  }
  endpoint.alive = false;
  purge([&](const Action& action) {
    if (action.read != 0) {
      // What had left this source lands; what was to land here does not.
      const ReadState& read = reads_.at(action.read);
      return read.from == key || (read.source == key && action.kind == Action::Kind::kTake);
    }
    if (action.write == 0) return action.endpoint == key;
    const WriteState& write = writes_.at(action.write);
    return action.kind == Action::Kind::kComplete ? write.from == key : write.target == key;
  });
  std::erase_if(writes_, [&](const auto& entry) {
    return entry.second.from == key && entry.second.actions == 0;
  });
  std::erase_if(reads_, [&](const auto& entry) { return entry.second.from == key; });
  for (auto& [other_key, other] : endpoints_) {
    if (!other.alive) continue;
    std::vector<std::uint32_t> broken;
    for (const auto& [id, outbound] : other.outbounds) {
      if (outbound.target == key) broken.push_back(id);
    }
    for (const std::uint32_t id : broken) break_outbound(other_key, id, "the peer died");
    for (const auto& [id, inbound] : other.inbounds) {
      if (options_.fence_on_crash && inbound.connection && inbound.connection->first == key) {
        schedule(options_.fence,
                 {.kind = Action::Kind::kFence, .endpoint = other_key, .id = id, .link = {}});
      }
    }
  }
  endpoint.events.clear();
  endpoint.inbounds.clear();
  endpoint.outbounds.clear();
  endpoint.bases.clear();
}

// The driver.

std::string Network::Core::describe(std::size_t index) const {
  BATON_CHECK(index < actions_.size());
  const Action& action = std::next(actions_.begin(), static_cast<std::ptrdiff_t>(index))->second;
  const auto route = [](const Link& link) {
    return link.first.to_string() + " -> " + link.second.to_string();
  };
  switch (action.kind) {
    case Action::Kind::kConnect:
      return fmt::format("connect outbound {} {}", action.id, route(action.link));
    case Action::Kind::kLand: {
      const WriteState& write = writes_.at(action.write);
      return fmt::format("land {}/{} of write {} {}", action.piece + 1, write.pieces_total,
                         action.write, route(write.link));
    }
    case Action::Kind::kImmediate:
      return fmt::format("immediate of write {} {}", action.write, route(action.link));
    case Action::Kind::kComplete: {
      const WriteState& write = writes_.at(action.write);
      return fmt::format("complete write {} {}{}", action.write, route(write.link),
                         write.fails ? " in error" : "");
    }
    case Action::Kind::kTake:
    case Action::Kind::kLandRead:
    case Action::Kind::kCompleteRead:
      return describe_read(action);
    case Action::Kind::kClosed:
      return fmt::format("close outbound {} at {}", action.id,
                         endpoints_.at(action.endpoint).self.to_string());
    case Action::Kind::kFence:
      return fmt::format("fence inbound {} at {}", action.id,
                         endpoints_.at(action.endpoint).self.to_string());
  }
  return {};
}

void Network::Core::fire(std::size_t index) {
  BATON_CHECK(index < actions_.size());
  run(std::next(actions_.begin(), static_cast<std::ptrdiff_t>(index)));
}

void Network::Core::advance_to(Time until) {
  while (!actions_.empty() && actions_.begin()->first.first <= until) run(actions_.begin());
  now_ = std::max(now_, until);
}

bool Network::Core::step() {
  if (actions_.empty()) return false;
  fire(rng_.below(actions_.size()));
  return true;
}

void Network::Core::fence(const PeerId& receiver, const PeerId& writer) {
  const std::optional<EndpointKey> key = find_alive(receiver);
  if (!key) return;
  std::vector<std::uint32_t> ids;
  for (const auto& [id, inbound] : endpoints_.at(*key).inbounds) {
    if (inbound.peer == writer) ids.push_back(id);
  }
  for (const std::uint32_t id : ids) do_fence(*key, id);
}

void Network::Core::hold(const Link& link, bool held) {
  if (held) {
    std::vector<Action>& waiting = held_[link];
    std::erase_if(actions_, [&](const auto& entry) {
      if (entry.second.link != link) return false;
      waiting.push_back(entry.second);
      return true;
    });
    return;
  }
  auto node = held_.extract(link);
  if (node.empty()) return;
  for (Action& action : node.mapped()) schedule(Delay{}, std::move(action));
}

}  // namespace baton::fabric::sim
