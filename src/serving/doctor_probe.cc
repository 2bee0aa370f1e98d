// The side channel, tried for real.

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/boot_id.h"
#include "base/unique_fd.h"
#include "engine/kv_cache.h"
#include "http/client.h"
#include "serving/doctor.h"
#include "serving/transfer_log.h"

namespace baton::serving {
namespace {

constexpr char kConnect[] = "side channel";
constexpr char kHandshake[] = "handshake";

struct AddressList {
  addrinfo* first = nullptr;
  AddressList() = default;
  AddressList(const AddressList&) = delete;
  AddressList& operator=(const AddressList&) = delete;
  ~AddressList() {
    if (first != nullptr) freeaddrinfo(first);
  }
};

// "" once connected.
std::string connect_to(const std::string& host, std::uint16_t port, Duration timeout) {
  AddressList found;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found.first);
  if (error != 0) return fmt::format("{} is no address: {}", host, gai_strerror(error));
  const UniqueFd fd(socket(found.first->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return strerror(errno);
  if (connect(fd.get(), found.first->ai_addr, found.first->ai_addrlen) == 0) return "";
  if (errno != EINPROGRESS) return strerror(errno);
  pollfd wait{fd.get(), POLLOUT, 0};
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
  if (poll(&wait, 1, static_cast<int>(ms)) <= 0) {
    return fmt::format("no answer within {} ms", ms);
  }
  int result = 0;
  socklen_t size = sizeof(result);
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &result, &size);
  return result == 0 ? "" : strerror(result);
}

AgentOptions agent_like(const InstanceInfo& decode, const InstanceInfo& prefill,
                        const Security& security, Duration timeout) {
  AgentOptions options;
  options.engine_id = "doctor-" + TransferId::random().to_string().substr(0, 12);
  options.role = Role::kConsumer;
  options.fabric = prefill.fabric;
  options.security = security;
  options.fabric_provider = prefill.fabric_provider;
  options.protocol_max = static_cast<std::uint16_t>(decode.protocol.newest);
  options.peer_timeout = std::chrono::duration_cast<std::chrono::milliseconds>(timeout);
  options.lease = 2 * options.peer_timeout;
  options.lease_renewal = options.peer_timeout / 2;
  options.transfer_timeout = options.peer_timeout;
  return options;
}

// D's geometry, with one block.
Result<engine::KvCache> cache_like(const InstanceInfo& decode) {
  model::ModelConfig config;
  config.fingerprint = decode.weights;
  config.num_layers = static_cast<std::uint32_t>(decode.kv.num_layers);
  config.num_kv_heads = static_cast<std::uint32_t>(decode.kv.num_kv_heads);
  config.head_dim = static_cast<std::uint32_t>(decode.kv.head_dim);
  constexpr std::uint64_t kMost = 1 << 16;  // a strange answer must not cost memory
  if (decode.kv.num_layers == 0 || decode.kv.num_layers > kMost || decode.kv.num_kv_heads == 0 ||
      decode.kv.num_kv_heads > kMost || decode.kv.head_dim == 0 || decode.kv.head_dim > kMost ||
      decode.block_size == 0 || decode.block_size > kMost) {
    return fail(Errc::kInvalidArgument, "decode does not say its geometry");
  }
  return engine::KvCache::create(
      config, decode.kernel_family,
      {.block_size = decode.block_size,
       .num_blocks = 1,
       .dtype =
           decode.kv.dtype == "float32" ? model::KvDtype::kFloat32 : model::KvDtype::kBfloat16});
}

// A registration of a transfer that nobody knows. P answers the handshake, or refuses it with a
// reason, and the registration is taken back.
Check shake_hands(Agent& agent, const PeerAddress& peer, const InstanceInfo& decode,
                  Duration timeout) {
  const char* remedy = "the text names the field and both values: make them alike on both sides";
  Registration registration;
  registration.transfer = TransferId::random();
  registration.attempt = 1;
  registration.peer = peer;
  registration.range = {0, decode.block_size};
  registration.block_ids = {{0}};
  registration.prompt_tokens = decode.block_size;
  const TransferId transfer = registration.transfer;
  if (const Status asked = agent.register_blocks(std::move(registration)); !asked) {
    return failure(kHandshake, asked.error().message, remedy);
  }
  const Time until = now() + timeout;
  std::array<Event, 4> events;
  while (now() < until) {
    const std::size_t n = agent.poll_events(events);
    for (std::size_t i = 0; i < n; ++i) {
      const Event& event = events[i];
      if (event.kind != Event::Kind::kEnded) continue;
      return failure(kHandshake, fmt::format("{}: {}", to_string(event.cause), event.text), remedy);
    }
    if (agent.metrics().peers_connected.value() > 0) {
      (void)agent.cancel(transfer);
      return ok(kHandshake,
                fmt::format("{} answers on {}:{}", peer.engine_id, peer.host, peer.port));
    }
    pollfd wait{agent.event_fd(), POLLIN, 0};
    constexpr int kLook = 20;
    poll(&wait, 1, kLook);
  }
  return failure(kHandshake, "connected, and no answer within the time-out",
                 "the prefill process is stopped or overloaded, or another program listens there");
}

}  // namespace

std::vector<Check> probe_side_channel(const InstanceInfo& prefill, const std::string& prefill_url,
                                      const InstanceInfo& decode, const Security& security,
                                      Duration timeout) {
  if (prefill.engine_id.empty() || prefill.handover_port == 0) {
    return {failure(kConnect, "prefill has none", "start it with --kv-transfer-config")};
  }
  PeerAddress peer{prefill.handover_host, prefill.handover_port, prefill.engine_id,
                   prefill.incarnation};
  if (peer.host == "0.0.0.0" || peer.host == "::" || peer.host.empty()) {
    if (const auto url = http::parse_url(prefill_url)) peer.host = url->host;
  }
  const std::string trouble = connect_to(peer.host, peer.port, timeout);
  const std::string where = fmt::format("{}:{}", peer.host, peer.port);
  if (!trouble.empty()) {
    return {failure(kConnect, fmt::format("{}: {}", where, trouble),
                    "kv_ip and kv_port in prefill's --kv-transfer-config must be an address that "
                    "decode reaches; this was tried from here")};
  }
  std::vector<Check> out = {ok(kConnect, where + " takes connections")};
  if (prefill.fabric == "shm" && prefill.boot_id != boot_id()) {
    out.push_back(warning(kHandshake, "not tried: shm needs the instances' own host",
                          "run the doctor there"));
    return out;
  }
  const auto cache = cache_like(decode);
  if (!cache) {
    out.push_back(warning(kHandshake, "not tried: " + cache.error().message, "upgrade decode"));
    return out;
  }
  auto agent = Agent::create(agent_like(decode, prefill, security, timeout), cache->geometry());
  if (!agent) {
    out.push_back(failure(kHandshake, "no agent can be made here: " + agent.error().message,
                          "what the text names; the instances' host may have it"));
    return out;
  }
  out.push_back(shake_hands(**agent, peer, decode, timeout));
  return out;
}

}  // namespace baton::serving
