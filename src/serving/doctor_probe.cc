// The side channel, tried for real.

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "base/boot_id.h"
#include "base/unique_fd.h"
#include "engine/kv_cache.h"
#include "engine/timed/profile.h"
#include "http/client.h"
#include "http/resolve.h"
#include "serving/doctor.h"
#include "wire/frame.h"

namespace baton::serving {
namespace {

constexpr char kConnect[] = "side channel";
constexpr char kHandshake[] = "handshake";
constexpr char kAllowed[] = "allowed peers";
constexpr char kNoAnswer[] = "no answer";

// To an IP address. "" once connected.
std::string connect_to_address(const std::string& address, std::uint16_t port, Duration timeout) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;  // no question to a name server
  addrinfo* list = nullptr;
  const int error = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0) return fmt::format("{} is no address: {}", address, gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  const UniqueFd fd(socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return strerror(errno);
  if (connect(fd.get(), list->ai_addr, list->ai_addrlen) == 0) return "";
  if (errno != EINPROGRESS) return strerror(errno);
  pollfd wait{fd.get(), POLLOUT, 0};
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
  if (poll(&wait, 1, static_cast<int>(std::max<std::int64_t>(ms, 0))) <= 0) return kNoAnswer;
  int result = 0;
  socklen_t size = sizeof(result);
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &result, &size);
  return result == 0 ? "" : strerror(result);
}

// "" once connected: the name looked up and its addresses tried, all within `timeout`.
std::string connect_to(const std::string& host, std::uint16_t port, Duration timeout,
                       const http::Lookup& lookup) {
  const Time until = now() + timeout;
  const auto found = http::resolve_within(host, timeout, lookup);
  if (!found) return found.error().message;
  std::string trouble;
  for (const std::string& address : *found) {
    trouble = connect_to_address(address, port, until - now());
    if (trouble.empty()) return "";
  }
  if (trouble != kNoAnswer) return trouble;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
  return fmt::format("{} within {} ms", kNoAnswer, ms);
}

AgentOptions agent_like(const InstanceInfo& decode, const InstanceInfo& prefill,
                        const Security& security, Duration timeout) {
  AgentOptions options;
  options.engine_id = "doctor-" + TransferId::random().to_string().substr(0, 12);
  options.role = Role::kConsumer;
  options.mode = decode.mode == "pull" ? Mode::kPull : Mode::kPush;
  options.fabric = prefill.fabric;
  options.security = security;
  options.security.insecure = security.insecure || decode.insecure;
  if (decode.allowed_peers) options.security.allowed_peers = *decode.allowed_peers;
  options.fabric_provider = prefill.fabric_provider;
  options.protocol_max =
      static_cast<std::uint16_t>(std::min<std::uint64_t>(decode.protocol.newest, wire::kVersion));
  options.peer_timeout = std::chrono::duration_cast<std::chrono::milliseconds>(timeout);
  options.lease = 2 * options.peer_timeout;
  options.lease_renewal = options.peer_timeout / 2;
  options.transfer_timeout = options.peer_timeout;
  return options;
}

// An emulated instance has a layout of its own.
bool says_layout(const InstanceInfo& info) {
  return info.kv.regions_per_layer != 0;
}

// The bytes of one block by what a server claims; nothing: more than one block of any model has, so
// that a strange answer costs no memory.
std::optional<std::uint64_t> claimed_block_bytes(const InstanceInfo& info) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 30;
  constexpr std::uint64_t kLayersMax = 4096;     // a region each, and its alignment
  constexpr std::uint64_t kRegionsPerLayer = 2;  // at most: K and V
  if (info.kv.num_layers > kLayersMax || info.kv.regions_per_layer > kRegionsPerLayer) return {};
  std::uint64_t bytes =
      says_layout(info) ? info.kv.regions_per_layer : kRegionsPerLayer * sizeof(float);
  for (const std::uint64_t factor :
       {info.kv.num_layers, says_layout(info) ? 1 : info.kv.num_kv_heads,
        says_layout(info) ? info.kv.region_token_bytes : info.kv.head_dim,
        std::uint64_t{info.block_size}}) {
    if (factor > kMost / std::max<std::uint64_t>(bytes, 1)) return {};
    bytes *= factor;
  }
  return bytes;
}

std::string claimed_shape(const InstanceInfo& info) {
  return says_layout(info)
             ? fmt::format("{} regions a layer x {} bytes a token", info.kv.regions_per_layer,
                           info.kv.region_token_bytes)
             : fmt::format("{} KV heads x {} values", info.kv.num_kv_heads, info.kv.head_dim);
}

// D's geometry, with one block.
Result<engine::KvCache> cache_like(const InstanceInfo& decode) {
  const auto bytes = claimed_block_bytes(decode);
  if (!bytes || *bytes == 0) {
    return fail(Errc::kInvalidArgument,
                fmt::format("decode says that a block is {} layers x {} tokens, {}, which is {}",
                            decode.kv.num_layers, decode.block_size, claimed_shape(decode),
                            bytes ? "nothing" : "more than 1 GiB or 4,096 layers"));
  }
  std::optional<model::KvLayout> layout;
  if (says_layout(decode)) {
    layout = {engine::timed::region_names(static_cast<std::uint32_t>(decode.kv.num_layers),
                                          static_cast<std::uint32_t>(decode.kv.regions_per_layer)),
              decode.kv.region_token_bytes * decode.block_size};
  }
  model::ModelConfig config;
  config.fingerprint = decode.weights;
  config.num_layers = static_cast<std::uint32_t>(decode.kv.num_layers);
  config.num_kv_heads = static_cast<std::uint32_t>(decode.kv.num_kv_heads);
  config.head_dim = static_cast<std::uint32_t>(decode.kv.head_dim);
  return engine::KvCache::create(
      config, decode.kernel_family,
      {.block_size = decode.block_size,
       .num_blocks = 1,
       .dtype = decode.kv.dtype == "float32" ? model::KvDtype::kFloat32 : model::KvDtype::kBfloat16,
       .layout = std::move(layout)});
}

// A registration of a transfer that nobody knows. P answers the handshake, or refuses it with a
// reason, and the registration is taken back.
Check shake_hands(Agent& agent, const PeerAddress& peer, const InstanceInfo& decode,
                  Duration timeout) {
  const char* remedy =
      "the text names the field and both values: make them alike on both sides; where it is TLS, "
      "give "
      "the doctor the keys that the instances have (--kv-psk-file, or --kv-tls-cert and its like)";
  Registration registration;
  registration.transfer = TransferId::random();
  registration.attempt = 1;
  registration.peer = peer;
  registration.prompt_tokens = decode.block_size;
  if (decode.mode == "pull") {  // nothing is wanted, so that nothing is read
    registration.block_ids = {{}};
    registration.source = SourceBlocks{{}, {{}}};
  } else {
    registration.range = {0, decode.block_size};
    registration.block_ids = {{0}};
  }
  const TransferId transfer = registration.transfer;
  if (const Status asked = agent.register_blocks(std::move(registration)); !asked) {
    return failure(kHandshake, asked.error().message, remedy);
  }
  const auto answers = [&peer] {
    return ok(kHandshake, fmt::format("{} answers on {}:{}", peer.engine_id, peer.host, peer.port));
  };
  const Time until = now() + timeout;
  std::array<Event, 4> events;
  while (now() < until) {
    const std::size_t n = agent.poll_events(events);
    for (std::size_t i = 0; i < n; ++i) {
      const Event& event = events[i];
      if (event.kind != Event::Kind::kEnded) continue;
      if (event.cause == Cause::kUnknownTransfer) return answers();  // P's word on it: it let us in
      return failure(kHandshake, fmt::format("{}: {}", to_string(event.cause), event.text), remedy);
    }
    if (agent.metrics().peers_connected.value() > 0) {
      (void)agent.cancel(transfer);  // best effort: the agent ends with the probe
      return answers();
    }
    pollfd wait{agent.event_fd(), POLLIN, 0};
    constexpr int kLook = 20;
    poll(&wait, 1, kLook);
  }
  return failure(kHandshake, "connected, and no answer within the time-out",
                 "the prefill process is stopped or overloaded, or another program listens there");
}

// D's own list, read as D reads it: its agent refuses a peer before a packet leaves.
Check may_connect(Agent& agent, const PeerAddress& peer) {
  const TransferId nobody = TransferId::random();
  if (const Status claimed = agent.claim(nobody, peer); !claimed) {
    return failure(kAllowed, "decode may not connect to prefill: " + claimed.error().message,
                   fmt::format("add {}:{} to decode's --kv-allowed-peers", peer.host, peer.port));
  }
  (void)agent.cancel(nobody);  // best effort: the agent ends with the probe
  return ok(kAllowed, fmt::format("decode may connect to {}:{}", peer.host, peer.port));
}

PeerAddress address_of(const InstanceInfo& prefill, const std::string& prefill_url) {
  PeerAddress peer{prefill.handover_host, prefill.handover_port, prefill.engine_id,
                   prefill.incarnation};
  if (peer.host == "0.0.0.0" || peer.host == "::" || peer.host.empty()) {
    if (const auto url = http::parse_url(prefill_url)) peer.host = url->host;
  }
  return peer;
}

Check reach(const PeerAddress& peer, Duration timeout, const http::Lookup& lookup) {
  const std::string trouble = connect_to(peer.host, peer.port, timeout, lookup);
  const std::string where = fmt::format("{}:{}", peer.host, peer.port);
  if (trouble.empty()) return ok(kConnect, where + " takes connections");
  return failure(
      kConnect, fmt::format("{}: {}", where, trouble),
      fmt::format("kv_ip and kv_port in prefill's --kv-transfer-config must be an address "
                  "that decode reaches, and a firewall or security group between the "
                  "hosts must let TCP port {} through; this was tried from here",
                  peer.port));
}

// With an agent in D's place: whether D's list lets it go there, and what P says to it.
void probe_as_decode(const InstanceInfo& prefill, const PeerAddress& peer,
                     const InstanceInfo& decode, const Security& security, Duration timeout,
                     std::vector<Check>& out) {
  const bool reached = out.back().verdict == Check::Verdict::kOk;
  const auto cache = cache_like(decode);
  if (!cache) {
    out.push_back(warning(kHandshake, "not tried: " + cache.error().message, "upgrade decode"));
    return;
  }
  auto agent = Agent::create(agent_like(decode, prefill, security, timeout), cache->geometry());
  if (!agent) {
    out.push_back(failure(kHandshake, "no agent can be made here: " + agent.error().message,
                          "what the text names; the instances' host may have it"));
    return;
  }
  const Check allowed = out.emplace_back(may_connect(**agent, peer));
  if (allowed.verdict != Check::Verdict::kOk || !reached) return;
  if (prefill.fabric == "shm" && prefill.boot_id != boot_id()) {
    out.push_back(warning(kHandshake, "not tried: shm needs the instances' own host",
                          "run the doctor there"));
    return;
  }
  out.push_back(shake_hands(**agent, peer, decode, timeout));
}

}  // namespace

std::vector<Check> probe_side_channel(const InstanceInfo& prefill, const std::string& prefill_url,
                                      const InstanceInfo& decode, const Security& security,
                                      Duration timeout, const http::Lookup& lookup) {
  if (prefill.engine_id.empty() || prefill.handover_port == 0) {
    return {failure(kConnect, "prefill has none", "start it with --kv-transfer-config")};
  }
  const PeerAddress peer = address_of(prefill, prefill_url);
  std::vector<Check> out = {reach(peer, timeout, lookup)};
  probe_as_decode(prefill, peer, decode, security, timeout, out);
  return out;
}

}  // namespace baton::serving
