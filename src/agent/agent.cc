// The public API: checks the caller's arguments on the caller's thread and hands what is sound to
// the owner thread.
#include "baton/agent.h"

#include <fmt/format.h>

#include <cctype>
#include <cstdlib>

#include "agent/exposure.h"
#include "agent/fault_fabric.h"
#include "agent/make_agent.h"
#include "agent/owner.h"
#include "agent/peer_list.h"
#include "agent/tcp.h"
#include "agent/tls.h"
#include "base/log.h"
#include "base/random.h"
#include "fabric/choice/choice_fabric.h"
#include "fabric/paced/paced_fabric.h"
#include "layout/geometry_check.h"
#include "wire/frame.h"

namespace baton {
namespace {

constexpr std::size_t kEngineIdMax = 128;
constexpr std::chrono::nanoseconds kPostCostMax = std::chrono::milliseconds(100);
constexpr std::uint32_t kTransfersMax = 1U << 18;  // well inside a slot's 20-bit index

Status check_engine_id(std::string_view field, const std::string& engine_id) {
  if (engine_id.empty() || engine_id.size() > kEngineIdMax) {
    return fail(Errc::kInvalidArgument, fmt::format("{} has {} characters, 1 to {} are allowed",
                                                    field, engine_id.size(), kEngineIdMax));
  }
  for (const char c : engine_id) {
    if (std::isprint(static_cast<unsigned char>(c)) == 0) {
      return fail(Errc::kInvalidArgument,
                  fmt::format("{} contains byte {:#04x}, only printable characters are allowed",
                              field, static_cast<unsigned char>(c)));
    }
  }
  return {};
}

Status check_positive(std::string_view field, std::chrono::milliseconds value) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24);
  if (value > std::chrono::milliseconds{0} && value <= kLongest) return {};
  return fail(Errc::kInvalidArgument, fmt::format("{} is {} ms, 1 to {} are allowed", field,
                                                  value.count(), kLongest.count()));
}

Status check_address(const PeerAddress& peer) {
  if (peer.host.empty()) return fail(Errc::kInvalidArgument, "peer.host is empty");
  if (peer.port == 0) return fail(Errc::kInvalidArgument, "peer.port is 0");
  return check_engine_id("peer.engine_id", peer.engine_id);
}

Status check_transfer(TransferId transfer) {
  if (transfer.is_null()) return fail(Errc::kInvalidArgument, "transfer is the null id");
  return {};
}

Status busy() {
  return fail(Errc::kResourceExhausted, "the agent's queue of submissions is full");
}

OwnerOptions make_owner_options(const AgentOptions& options) {
  OwnerOptions owner;
  owner.host = options.host;
  owner.port = options.port;
  owner.spin = options.spin;
  // The protocol notices silence itself, by whole messages, at peer_timeout, and names it; the
  // channel closes what is left: drips of bytes, half a frame, output that nobody reads.
  owner.channel.peer_timeout = options.peer_timeout * 3 / 2;
  owner.channel.stranger_timeout =
      std::min<Duration>(options.peer_timeout, std::chrono::seconds(2));
  owner.channel.connect_timeout = owner.channel.stranger_timeout;
  owner.channel.insecure = options.security.insecure;
  return owner;
}

handover::Config handover_config(const AgentOptions& options, const Geometry& geometry,
                                 const PeerId& id, const fabric::Capabilities& capabilities) {
  handover::Config config;
  config.id = id;
  config.role = options.role;
  config.mode = options.mode;
  config.geometry = geometry;
  config.verify_blocks = options.verify_blocks;
  config.merge_runs = options.merge_runs;
  config.peer_timeout = options.peer_timeout;
  config.lease = options.lease;
  config.lease_renewal = options.lease_renewal;
  config.transfer_timeout = options.transfer_timeout;
  config.transfer_total = options.transfer_total;
  config.transfers_max = options.transfers_max;
  config.registrations_max = options.registrations_max;
  config.unmatched_max = options.unmatched_max;
  config.registered_blocks_max = options.registered_blocks_max;
  config.claims_max = options.claims_max;
  if (options.protocol_max != 0) config.version_max = options.protocol_max;
  config.quarantine_blocks_max = options.quarantine_blocks_max;
  config.fabric = capabilities.name;
  config.delivery_complete = capabilities.delivery_complete;
  config.failed_writes_final = capabilities.failed_writes_final;
  config.writes_in_flight_max = capabilities.writes_in_flight_max;
  config.write_bytes_max = capabilities.write_bytes_max;
  config.immediates_max = capabilities.immediates_max;
  return config;
}

class AgentImpl final : public Agent {
 public:
  AgentImpl(const AgentOptions& options, const Geometry& geometry, const PeerId& id,
            PeerList allowed_peers, std::shared_ptr<const LinkMetrics> link,
            std::unique_ptr<Owner> owner)
      : options_(options),
        geometry_(geometry),
        id_(id),
        allowed_peers_(std::move(allowed_peers)),
        link_(std::move(link)),
        owner_(std::move(owner)) {}

  Status claim(TransferId transfer, const PeerAddress& peer) override {
    if (auto ok = consumes("claim"); !ok) return ok;
    if (auto ok = check_transfer(transfer); !ok) return ok;
    if (auto ok = check_peer(peer); !ok) return ok;
    return submit(ClaimCall{transfer, peer});
  }

  Status register_blocks(Registration registration) override {
    if (auto ok = consumes("register_blocks"); !ok) return ok;
    if (auto ok = check_transfer(registration.transfer); !ok) return ok;
    if (auto ok = check_peer(registration.peer); !ok) return ok;
    if (auto ok = handover::check_registration(geometry_, options_.mode, registration); !ok) {
      return ok;
    }
    if (auto ok = has_place(owner_->open_decode()); !ok) return ok;
    const TransferId transfer = registration.transfer;
    const bool pull = options_.mode == Mode::kPull;
    if (pull) owner_->posted_book().open(transfer);
    Status ok = submit(std::move(registration));
    if (pull && !ok) owner_->posted_book().close(transfer);
    return ok;
  }

  Status wait_posted(TransferId transfer, std::chrono::milliseconds at_most) override {
    if (options_.mode != Mode::kPull) {
      return fail(Errc::kUnsupported, "wait_posted was called and mode is push");
    }
    if (owner_->posted_book().wait(transfer, at_most)) return {};
    return fail(Errc::kDeadlineExceeded,
                fmt::format("the reads of transfer {} are not posted after {} ms",
                            transfer.to_string(), at_most.count()));
  }

  Status withdraw(TransferId transfer) override {
    if (auto ok = consumes("withdraw"); !ok) return ok;
    if (auto ok = check_transfer(transfer); !ok) return ok;
    return submit(WithdrawCall{transfer});
  }

  Status expect(TransferId transfer, std::uint32_t prompt_tokens) override {
    if (auto ok = produces("expect"); !ok) return ok;
    if (auto ok = check_transfer(transfer); !ok) return ok;
    if (auto ok = has_place(owner_->open_prefill()); !ok) return ok;
    return submit(ExpectCall{transfer, prompt_tokens});
  }

  Status ready(ReadyPiece piece) override {
    if (auto ok = produces("ready"); !ok) return ok;
    if (auto ok = check_transfer(piece.transfer); !ok) return ok;
    if (auto ok = handover::check_ready(geometry_, piece); !ok) return ok;
    // Mostly for a transfer that is expected already and so has its place: half of the count.
    if (auto ok = has_place(owner_->open_prefill() / 2); !ok) return ok;
    return submit(std::move(piece));
  }

  Status cancel(TransferId transfer) override {
    if (auto ok = check_transfer(transfer); !ok) return ok;
    return submit(CancelCall{transfer});
  }

  Status drain() override { return submit(DrainCall{}); }
  Status abandon() override { return submit(AbandonCall{}); }

  int event_fd() const override { return owner_->events().fd(); }
  std::size_t poll_events(std::span<Event> out) override { return owner_->events().take(out); }

  const PeerId& id() const override { return id_; }
  PeerAddress control_address() const override {
    return {options_.host, owner_->port(), id_.engine_id, id_.incarnation};
  }
  const AgentMetrics& metrics() const override { return owner_->metrics(); }
  const LinkMetrics* link() const override { return link_.get(); }

 private:
  Status consumes(std::string_view call) const {
    return role_allows(Role::kProducer, call, "producer");
  }
  Status produces(std::string_view call) const {
    return role_allows(Role::kConsumer, call, "consumer");
  }
  Status role_allows(Role refused, std::string_view call, std::string_view name) const {
    if (options_.role != refused) return {};
    return fail(Errc::kUnsupported, fmt::format("{} was called and role is {}", call, name));
  }

  Status check_peer(const PeerAddress& peer) const {
    if (auto ok = check_address(peer); !ok) return ok;
    return allowed_peers_.check(peer);
  }

  Status has_place(std::uint32_t open) const {
    if (open < options_.transfers_max) return {};
    return fail(Errc::kResourceExhausted,
                fmt::format("{} transfers are open or their events not taken, transfers_max is {}",
                            open, options_.transfers_max));
  }

  Status submit(Submission&& submission) {
    if (!owner_->submit(std::move(submission))) return busy();
    return {};
  }

  const AgentOptions options_;
  const Geometry geometry_;
  const PeerId id_;
  const PeerList allowed_peers_;
  const std::shared_ptr<const LinkMetrics> link_;  // goes after the fabric that counts there
  const std::unique_ptr<Owner> owner_;
};

// A test's knob that a service may have inherited: what it breaks is other hosts' KV.
Result<std::unique_ptr<fabric::Fabric>> with_fault(const char* text, const AgentOptions& options,
                                                   std::unique_ptr<fabric::Fabric> fabric) {
  const auto fault = Fault::parse(text);
  if (!fault) return tl::unexpected(fault.error());
  const auto refuse = [&](std::string_view field, std::string_view value) {
    return fail(Errc::kInvalidArgument,
                fmt::format("BATON_FAULT is '{}' and {} is {}: writes are broken on purpose on "
                            "loopback only, unset it",
                            text, field, value));
  };
  if (const auto host = tcp::parse(options.host, options.port); !host || !host->is_loopback()) {
    return refuse("host", fmt::format("'{}'", options.host));
  }
  const auto exposed = exposed_endpoints(options);
  if (!exposed) return tl::unexpected(exposed.error());
  if (*exposed) return refuse("fabric address", **exposed);
  return std::make_unique<FaultFabric>(std::move(fabric), *fault);
}

// Before the fabric's own work, where a link is emulated. `metrics` is null where none is.
Result<std::unique_ptr<fabric::Fabric>> behind_link(const AgentOptions& options,
                                                    std::unique_ptr<fabric::Fabric> fabric,
                                                    std::shared_ptr<LinkMetrics>& metrics) {
  const fabric::paced::Link link{options.link_bytes_per_second, options.post_cost};
  if (link.bytes_per_second == 0 && link.post_cost == Duration{0}) return fabric;
  metrics = std::make_shared<LinkMetrics>();
  auto paced = fabric::paced::PacedFabric::create(std::move(fabric), link, *metrics);
  if (!paced) return tl::unexpected(paced.error());
  return std::move(*paced);
}

// Nobody is authenticated here, by the word `insecure`.
void warn_of_open_doors(const AgentOptions& options, const Owner& owner) {
  constexpr std::string_view kWhy =
      "which other hosts can reach, and peers are not authenticated: whoever connects can read and "
      "write KV blocks";
  if (!owner.listens_on_loopback()) {
    log::warning("the control channel listens on {}:{}, {}", options.host, owner.port(), kWhy);
  }
  if (const auto exposed = exposed_endpoints(options); exposed && *exposed) {
    log::warning("fabric {} has endpoints on {}, {}", options.fabric, **exposed, kWhy);
  }
}

}  // namespace

Status check_options(const AgentOptions& options) {
  if (auto ok = check_engine_id("engine_id", options.engine_id); !ok) return ok;
  if (auto ok = check_positive("peer_timeout", options.peer_timeout); !ok) return ok;
  if (auto ok = check_positive("lease", options.lease); !ok) return ok;
  if (auto ok = check_positive("lease_renewal", options.lease_renewal); !ok) return ok;
  if (auto ok = check_positive("transfer_timeout", options.transfer_timeout); !ok) return ok;
  if (auto ok = check_positive("transfer_total", options.transfer_total); !ok) return ok;
  if (options.protocol_max != 0 &&
      (options.protocol_max < wire::kVersionMin || options.protocol_max > wire::kVersion)) {
    return fail(Errc::kInvalidArgument,
                fmt::format("protocol_max is {}, {} to {} are spoken", options.protocol_max,
                            wire::kVersionMin, wire::kVersion));
  }
  if (options.post_cost < std::chrono::nanoseconds{0} || options.post_cost > kPostCostMax) {
    return fail(Errc::kInvalidArgument,
                fmt::format("post_cost is {} ns, 0 to {} are allowed", options.post_cost.count(),
                            kPostCostMax.count()));
  }
  if (options.lease_renewal >= options.lease) {
    return fail(Errc::kInvalidArgument,
                fmt::format("lease_renewal is {} ms, it must be below lease, which is {} ms",
                            options.lease_renewal.count(), options.lease.count()));
  }
  if (options.transfers_max == 0 || options.transfers_max > kTransfersMax) {
    return fail(Errc::kInvalidArgument, fmt::format("transfers_max is {}, 1 to {} are allowed",
                                                    options.transfers_max, kTransfersMax));
  }
  return {};
}

PeerId make_peer_id(const AgentOptions& options) {
  PeerId id{options.engine_id, 0};
  while (id.incarnation == 0) id.incarnation = random_u64();
  return id;
}

Result<std::unique_ptr<Agent>> make_agent(const AgentOptions& options, const Geometry& geometry,
                                          const PeerId& id,
                                          std::unique_ptr<fabric::Fabric> fabric) {
  auto ok = check_options(options);
  if (ok) ok = layout::validate(geometry, layout::Whose::kOurs);
  if (!ok) return tl::unexpected(ok.error());
  if (const char* text = std::getenv("BATON_FAULT")) {
    auto faulty = with_fault(text, options, std::move(fabric));
    if (!faulty) return tl::unexpected(faulty.error());
    fabric = std::move(*faulty);
  }
  std::shared_ptr<LinkMetrics> link;
  auto linked = behind_link(options, std::move(fabric), link);
  if (!linked) return tl::unexpected(linked.error());
  fabric = std::move(*linked);
  ok = fabric->register_regions(geometry.regions);
  if (!ok) return tl::unexpected(ok.error());
  if (options.mode == Mode::kPull && !fabric->capabilities().reads) {
    return fail(Errc::kUnsupported, fmt::format("mode is pull, and fabric {} does not read",
                                                fabric->capabilities().name));
  }
  const auto config = handover_config(options, geometry, id, fabric->capabilities());
  auto allowed_peers = PeerList::parse(options.security);
  if (!allowed_peers) return tl::unexpected(allowed_peers.error());
  OwnerOptions owner_options = make_owner_options(options);
  auto tls = tls::Context::create(options.security, options.engine_id);
  if (!tls) return tl::unexpected(tls.error());
  owner_options.channel.tls = *tls;
  auto owner = Owner::create(owner_options, config, std::move(fabric));
  if (!owner) return tl::unexpected(owner.error());
  if (*tls) {
    log::info("the control channel is secured by {}", (*tls)->description());
  } else {
    warn_of_open_doors(options, **owner);
  }
  return std::make_unique<AgentImpl>(options, geometry, id, std::move(*allowed_peers),
                                     std::move(link), std::move(*owner));
}

Result<std::unique_ptr<Agent>> Agent::create(const AgentOptions& options,
                                             const Geometry& geometry) {
  // Before the fabric is made, so that its errors do not hide the caller's.
  auto ok = check_options(options);
  if (ok) ok = layout::validate(geometry, layout::Whose::kOurs);
  AgentOptions resolved = options;
  if (ok) ok = resolve_fabric_address(resolved);
  if (ok) ok = check_endpoints(resolved);
  if (!ok) return tl::unexpected(ok.error());
  const PeerId id = make_peer_id(resolved);
  auto fabric = fabric::make_fabric(fabric_choice(resolved));
  if (!fabric) return tl::unexpected(fabric.error());
  return make_agent(resolved, geometry, id, std::move(*fabric));
}

}  // namespace baton
