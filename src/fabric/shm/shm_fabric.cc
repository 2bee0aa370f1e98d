#include "fabric/shm/shm_fabric.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/random.h"
#include "fabric/access.h"
#include "fabric/events.h"
#include "fabric/region_table.h"
#include "fabric/shm/inbound.h"
#include "fabric/shm/listener.h"
#include "fabric/shm/outbound.h"
#include "fabric/shm/refused.h"

namespace baton::fabric::shm {
namespace {

constexpr std::uint64_t kPollBytes = 256ULL << 10;  // copied in one poll
constexpr std::uint64_t kTurnBytes = 64ULL << 10;   // of one outbound before the next has its turn
constexpr int kCopyPolls = 4;  // polls of copying between two looks at the sockets
constexpr std::size_t kInboundsMax = 4096;
// Of one process whatever it calls itself: whoever begins session after session and never says
// farewell fills its own share. And of one engine id, which anybody with the pool's key may say, of
// offers that no process has taken up: what is taken up counts for its process alone, or else who
// claims another's name would lock that one out.
constexpr std::size_t kInboundsOfPeerMax = 256;
constexpr std::size_t kEventsHigh =
    16384;  // unpolled; beyond it nothing moves until some are taken
constexpr std::size_t kOutboundsMax = 4096;

// What an epoll entry stands for.
enum class Source : std::uint32_t {
  kListener,
  kVisitor,
  kInboundSocket,
  kInboundProcess,
  kOutboundSocket,
  kOutboundProcess
};

Token random_token() {
  const std::array<std::uint64_t, 2> words{random_u64(), random_u64()};
  Token token;
  static_assert(sizeof words == sizeof token);
  std::memcpy(token.data(), words.data(), sizeof token);
  return token;
}

class ShmFabric final : public Fabric {
 public:
  ShmFabric(UniqueFd epoll, Listener listener)
      : epoll_(std::move(epoll)), listener_(std::move(listener)) {
    capabilities_.name = "shm";
    capabilities_.reads = true;
    capabilities_.delivery_complete = true;
    capabilities_.failed_writes_final = true;  // our own thread copies, and has stopped
    capabilities_.writes_in_flight_max = Outbound::kPostedMax;
    capabilities_.write_bytes_max = 1ULL << 40;
    capabilities_.immediates_max = 1U << 16;
    BATON_CHECK(watch(listener_.socket(), Source::kListener, 0));
  }

  const Capabilities& capabilities() const override { return capabilities_; }
  Status register_regions(std::span<const Region> regions) override;
  Result<Fabric::Inbound> open_inbound(const PeerId& peer, Access access) override;
  void fence_inbound(InboundId inbound) override;
  std::string_view carrier_of(InboundId inbound) const override {
    const auto found = inbounds_.find(inbound.value);
    return found != inbounds_.end() && found->second.bound() ? "shm" : std::string_view();
  }
  Result<OutboundId> connect(const PeerId& peer, std::span<const std::byte> offer,
                             std::span<const Region> regions) override;
  void close_outbound(OutboundId outbound) override;
  Status post(const Write& write) override { return post_as(Access::kWrite, write); }
  Status post_read(const Read& read) override { return post_as(Access::kRead, as_write(read)); }
  std::size_t poll(std::span<FabricEvent> out) override;
  bool busy() const override {
    return !events_.empty() || !working_.empty() || !ending_.empty() || !warming_.empty();
  }
  int wait_fd() const override { return epoll_.get(); }

 private:
  using In = shm::Inbound;

  Status open_read_only();
  Status post_as(Access access, const Write& op);
  bool watch(int fd, Source source, std::uint32_t id, std::uint32_t events = EPOLLIN);
  void look_at_sockets();
  void on_ready(Source source, std::uint32_t id);
  void on_listener();
  void on_visitor(std::uint32_t id);
  void welcome(Listener::Visitor visitor, std::span<const std::byte> greeting);
  std::optional<std::string> let_in(Listener::Visitor& visitor,
                                    std::span<const std::byte> greeting);
  bool send_welcome(int socket, Access access) const;
  void on_inbound(std::uint32_t id);
  void on_inbound_dead(std::uint32_t id);
  void on_outbound(std::uint32_t id);
  void on_outbound_dead(std::uint32_t id);

  void move_bytes();
  void flush(Outbound& outbound);
  void end_some();
  void warm_some();
  void after_change(Outbound& outbound);
  Outbound* find_outbound(std::uint32_t id);

  Capabilities capabilities_;
  UniqueFd epoll_;
  Listener listener_;
  EventRing events_;
  std::uint32_t next_id_ = 1;
  int polls_without_sockets_ = 0;
  std::uint64_t refusals_ = 0;

  RegionTable table_;
  std::vector<std::byte*> bases_;
  std::vector<RegionPlace> places_;  // of our regions, as a welcome tells them
  std::vector<UniqueFd> memfds_;
  std::vector<UniqueFd> read_only_;  // the same, as readers get them; made for the first reader

  std::unordered_map<std::uint32_t, In> inbounds_;
  std::unordered_map<std::uint32_t, std::unique_ptr<Outbound>> outbounds_;
  Outbound* last_posted_ = nullptr;
  std::vector<Outbound*> working_;  // have bytes to copy; taken in turns
  std::size_t turn_ = 0;
  std::vector<Outbound*> to_flush_;
  std::vector<std::uint32_t> warming_;
  std::vector<std::uint32_t> ending_;
};

// Setting up.

Status ShmFabric::register_regions(std::span<const Region> regions) {
  Result<RegionTable> table = RegionTable::make(regions);
  if (!table) return tl::unexpected(table.error());
  std::vector<std::byte*> bases;
  std::vector<RegionPlace> places;
  std::vector<UniqueFd> memfds;
  std::vector<std::pair<dev_t, ino_t>>
      known;  // one descriptor for each memfd, however many regions lie in it
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const Region& region = regions[i];
    if (region.base == nullptr) {
      return fail(Errc::kInvalidArgument,
                  fmt::format("region {} ({}): base is null", i, region.name));
    }
    bases.push_back(region.base);
    RegionPlace place{table->length(i), reinterpret_cast<std::uint64_t>(region.base), kNoMemfd, 0};
    if (region.memfd >= 0) {
      std::uint64_t end = 0;
      if (__builtin_add_overflow(region.memfd_offset, place.length, &end)) {
        return fail(Errc::kInvalidArgument,
                    fmt::format("region {} ({}): memfd_offset {} + {} bytes", i, region.name,
                                region.memfd_offset, place.length));
      }
      if (Status ok = check_sealed(region.memfd, end); !ok) {
        return fail(ok.error().code,
                    fmt::format("region {} ({}): {}", i, region.name, ok.error().message));
      }
      struct stat info{};
      if (::fstat(region.memfd, &info) != 0) return refused("fstat");
      const std::pair identity(info.st_dev, info.st_ino);
      const auto found = std::find(known.begin(), known.end(), identity);
      place.memfd = static_cast<std::uint32_t>(found - known.begin());
      place.place = region.memfd_offset;
      if (found == known.end()) {
        if (known.size() == kMemfdsMax) {
          return fail(Errc::kInvalidArgument,
                      fmt::format("regions: more than {} memfds", kMemfdsMax));
        }
        known.push_back(identity);
        memfds.emplace_back(::fcntl(region.memfd, F_DUPFD_CLOEXEC, 0));
        if (!memfds.back()) return refused("F_DUPFD_CLOEXEC");
      }
    }
    places.push_back(place);
  }
  table_ = std::move(*table);
  bases_ = std::move(bases);
  places_ = std::move(places);
  memfds_ = std::move(memfds);
  read_only_.clear();
  return {};
}

// A reader's bug shall not be able to map our memory for writing.
Status ShmFabric::open_read_only() {
  for (std::size_t i = read_only_.size(); i < memfds_.size(); ++i) {
    const std::string path = fmt::format("/proc/self/fd/{}", memfds_[i].get());
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) return refused("opening a memfd for reading (/proc/self/fd)");
    read_only_.push_back(std::move(fd));
  }
  return {};
}

Result<Fabric::Inbound> ShmFabric::open_inbound(const PeerId& peer, Access access) {
  if (inbounds_.size() >= kInboundsMax) {
    return fail(Errc::kResourceExhausted,
                fmt::format("{} inbounds are open, the most allowed", kInboundsMax));
  }
  const auto of_peer = std::count_if(inbounds_.begin(), inbounds_.end(), [&](const auto& entry) {
    return entry.second.peer().engine_id == peer.engine_id && !entry.second.bound();
  });
  if (static_cast<std::size_t>(of_peer) >= kInboundsOfPeerMax) {
    return fail(Errc::kResourceExhausted,
                fmt::format("{} offers to peer {} are not taken up, at most {} are allowed",
                            of_peer, peer.engine_id, kInboundsOfPeerMax));
  }
  if (access == Access::kRead) {
    if (Status ok = open_read_only(); !ok) return tl::unexpected(ok.error());
  }
  const std::uint32_t id = next_id_++;
  const Token token = random_token();
  inbounds_.try_emplace(id, InboundId{id}, peer, access, token);
  return Fabric::Inbound{InboundId{id}, encode(Offer{access, listener_.name(), token})};
}

void ShmFabric::fence_inbound(InboundId inbound) {
  const auto found = inbounds_.find(inbound.value);
  if (found == inbounds_.end()) return;
  found->second.void_offer();
  if (found->second.bound() && !found->second.left()) return;  // its farewell or its pidfd tells
  // The memory was never handed out for this offer and now never will be, or it was given back.
  inbounds_.erase(found);
  events_.push(inbound_event(FabricEvent::Kind::kInboundFenced, inbound));
}

Result<OutboundId> ShmFabric::connect(const PeerId& peer, std::span<const std::byte> offer,
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
  auto outbound = Outbound::start(id, *decoded, std::move(*remote), events_);
  if (!outbound) {
    events_.push(outbound_event(FabricEvent::Kind::kConnectFailed, id,
                                fmt::format("{}: {}", peer.to_string(), outbound.error().message)));
    return id;
  }
  // The process is watched beside its socket, which a child of a dead peer may hold open.
  if (!watch((*outbound)->socket(), Source::kOutboundSocket, id.value) ||
      !watch((*outbound)->peer_pidfd(), Source::kOutboundProcess, id.value)) {
    return refused("epoll_ctl");
  }
  outbounds_.emplace(id.value, std::move(*outbound));
  return id;
}

void ShmFabric::close_outbound(OutboundId id) {
  if (Outbound* outbound = find_outbound(id.value)) {
    outbound->end({});
    after_change(*outbound);
  }
}

Status ShmFabric::post_as(Access access, const Write& op) {
  if (last_posted_ == nullptr || last_posted_->id() != op.to) {
    Outbound* outbound = find_outbound(op.to.value);
    if (outbound == nullptr) {
      return fail(Errc::kNotFound, fmt::format("outbound {} is not open", op.to.value));
    }
    last_posted_ = outbound;
  }
  if (Status ok = check_access(last_posted_->access(), access); !ok) return ok;
  if (Status ok = table_.check("local", op.local_region, op.local_offset, op.length); !ok) {
    return ok;
  }
  if (Status ok = check_length(access, op.length, capabilities_.write_bytes_max); !ok) return ok;
  std::byte* local = op.length == 0 ? nullptr : bases_[op.local_region] + op.local_offset;
  if (Status ok = last_posted_->post(op, local); !ok) return ok;
  if (!last_posted_->in_work_list) {
    last_posted_->in_work_list = true;
    working_.push_back(last_posted_);
  }
  return {};
}

// Polling.

std::size_t ShmFabric::poll(std::span<FabricEvent> out) {
  if (events_.size() < kEventsHigh) {
    if (working_.empty() || ++polls_without_sockets_ >= kCopyPolls) {
      polls_without_sockets_ = 0;
      look_at_sockets();
    }
    if (working_.empty()) warm_some();
    move_bytes();
    end_some();
  }
  std::size_t n = 0;
  while (n < out.size() && !events_.empty()) {
    out[n] = events_.pop();
    if (out[n].kind == FabricEvent::Kind::kImmediate) {
      const auto inbound = inbounds_.find(out[n].inbound.value);
      if (inbound != inbounds_.end()) inbound->second.on_delivered();
    }
    ++n;
  }
  return n;
}

void ShmFabric::move_bytes() {
  std::uint64_t budget = kPollBytes;
  while (budget > 0 && !working_.empty()) {
    if (turn_ >= working_.size()) turn_ = 0;
    Outbound& outbound = *working_[turn_];
    budget -= std::min(budget, outbound.work(std::min(budget, kTurnBytes)));
    if (!outbound.in_flush_list) {
      outbound.in_flush_list = true;
      to_flush_.push_back(&outbound);
    }
    if (outbound.has_work()) {
      ++turn_;
    } else {
      outbound.in_work_list = false;
      working_[turn_] = working_.back();
      working_.pop_back();
    }
  }
  for (Outbound* outbound : to_flush_) {
    outbound->in_flush_list = false;
    if (!outbound->waits_for_writable) outbound->flush();
    after_change(*outbound);
  }
  to_flush_.clear();
}

// After anything that may have filled a socket or ended the outbound.
void ShmFabric::after_change(Outbound& outbound) {
  const std::uint32_t id = outbound.id().value;
  if (outbound.ending() || outbound.ended()) {
    if (outbound.in_work_list) {
      outbound.in_work_list = false;
      std::erase(working_, &outbound);
    }
    if (std::find(ending_.begin(), ending_.end(), id) == ending_.end()) ending_.push_back(id);
    return;
  }
  if (outbound.blocked() != outbound.waits_for_writable) {
    outbound.waits_for_writable = outbound.blocked();
    epoll_event event{};
    event.events = EPOLLIN | (outbound.blocked() ? static_cast<std::uint32_t>(EPOLLOUT) : 0U);
    event.data.u64 = (static_cast<std::uint64_t>(Source::kOutboundSocket) << 32) | id;
    BATON_CHECK(::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, outbound.socket(), &event) == 0);
  }
}

void ShmFabric::end_some() {
  if (ending_.empty()) return;
  Outbound* outbound = find_outbound(ending_.back());
  if (outbound != nullptr && outbound->ending()) outbound->unmap_some();
  if (outbound == nullptr || outbound->ended()) {
    // Here and not where its end began: what is posted to it since is refused, and remembers it.
    if (outbound == last_posted_) last_posted_ = nullptr;
    outbounds_.erase(ending_.back());
    ending_.pop_back();
  }
}

void ShmFabric::warm_some() {
  if (warming_.empty()) return;
  Outbound* outbound = find_outbound(warming_.back());
  if (outbound == nullptr || !outbound->warm_some()) warming_.pop_back();
}

Outbound* ShmFabric::find_outbound(std::uint32_t id) {
  const auto found = outbounds_.find(id);
  return found == outbounds_.end() ? nullptr : found->second.get();
}

// Sockets.

bool ShmFabric::watch(int fd, Source source, std::uint32_t id, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = (static_cast<std::uint64_t>(source) << 32) | id;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void ShmFabric::look_at_sockets() {
  std::array<epoll_event, 64> ready;
  const int n = ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), 0);
  for (int i = 0; i < n; ++i) {
    const std::uint64_t data = ready[static_cast<std::size_t>(i)].data.u64;
    on_ready(static_cast<Source>(data >> 32), static_cast<std::uint32_t>(data));
  }
}

void ShmFabric::on_ready(Source source, std::uint32_t id) {
  switch (source) {
    case Source::kListener:
      return on_listener();
    case Source::kVisitor:
      return on_visitor(id);
    case Source::kInboundSocket:
      // A name that is gone ended earlier in the same round.
      return on_inbound(id);
    case Source::kInboundProcess:
      return on_inbound_dead(id);
    case Source::kOutboundSocket:
      return on_outbound(id);
    case Source::kOutboundProcess:
      return on_outbound_dead(id);
  }
}

void ShmFabric::on_listener() {
  const std::uint32_t id = next_id_++;
  const Listener::Visitor* visitor = listener_.accept(id);
  if (visitor == nullptr) return;
  if (!watch(visitor->socket.get(), Source::kVisitor, id)) {
    listener_.take(id);
    return;
  }
  on_visitor(id);
}

void ShmFabric::on_visitor(std::uint32_t id) {
  std::optional<Listener::Visitor> visitor = listener_.take(id);
  if (!visitor) return;
  std::array<std::byte, 256> greeting;
  const ssize_t n = ::recv(visitor->socket.get(), greeting.data(), greeting.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return listener_.put_back(std::move(*visitor));
  if (n <= 0) return;
  welcome(std::move(*visitor), std::span(greeting).first(static_cast<std::size_t>(n)));
}

void ShmFabric::welcome(Listener::Visitor visitor, std::span<const std::byte> greeting) {
  const int socket = visitor.socket.get();
  const pid_t pid = visitor.process.pid();
  const std::optional<std::string> refusal = let_in(visitor, greeting);
  if (!refusal) return;
  // A flood of refusals is told ever more rarely.
  if (std::has_single_bit(++refusals_)) {
    log::warning("shm: process {} is refused: {} ({} refusals so far)", pid, *refusal, refusals_);
  }
  const std::vector<std::byte> bytes = encode_refusal(*refusal);
  (void)::send(socket, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

// Answers why not.
std::optional<std::string> ShmFabric::let_in(Listener::Visitor& visitor,
                                             std::span<const std::byte> greeting) {
  const Result<Hello> hello = decode_hello(greeting);
  if (!hello) return hello.error().message;
  const auto found = std::find_if(inbounds_.begin(), inbounds_.end(), [&](const auto& entry) {
    return entry.second.token() == hello->token;
  });
  if (found == inbounds_.end()) return "no offer has this token";
  In& inbound = found->second;
  if (std::optional<std::string> objection = inbound.objection(hello->access, visitor.process)) {
    return objection;
  }
  const auto of_process = std::count_if(inbounds_.begin(), inbounds_.end(), [&](const auto& entry) {
    return &entry.second != &inbound && entry.second.is_of(visitor.process.pid());
  });
  if (static_cast<std::size_t>(of_process) >= kInboundsOfPeerMax) {
    return fmt::format("process {} holds {} inbounds here, at most {} are allowed",
                       visitor.process.pid(), of_process, kInboundsOfPeerMax);
  }
  // The process is bound before it gets the memory: from here on nothing but its death or its
  // farewell is a fence.
  const int socket = visitor.socket.get();
  if (inbound.admit(std::move(visitor.socket), std::move(visitor.process)) &&
      !watch(inbound.pidfd(), Source::kInboundProcess, found->first)) {
    BATON_CHECK(false, "epoll_ctl of a pidfd: {}", std::strerror(errno));
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = (static_cast<std::uint64_t>(Source::kInboundSocket) << 32) | found->first;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, socket, &event) != 0 ||
      !send_welcome(socket, inbound.access())) {
    inbound.drop_connection();
  }
  return std::nullopt;
}

bool ShmFabric::send_welcome(int socket, Access access) const {
  const std::vector<UniqueFd>& memfds = access == Access::kWrite ? memfds_ : read_only_;
  Welcome message;
  message.regions = places_;
  std::vector<std::byte> bytes = encode(message);
  iovec part{bytes.data(), bytes.size()};
  std::vector<std::byte> control(CMSG_SPACE(memfds.size() * sizeof(int)));
  msghdr head{};
  head.msg_iov = &part;
  head.msg_iovlen = 1;
  if (!memfds.empty()) {
    head.msg_control = control.data();
    head.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&head);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(memfds.size() * sizeof(int));
    for (std::size_t i = 0; i < memfds.size(); ++i) {
      const int fd = memfds[i].get();
      std::memcpy(CMSG_DATA(rights) + i * sizeof fd, &fd, sizeof fd);
    }
  }
  if (::sendmsg(socket, &head, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return true;
  log::warning("shm: a welcome of {} bytes could not be sent: {}", bytes.size(),
               std::strerror(errno));
  return false;
}

void ShmFabric::on_inbound(std::uint32_t id) {
  const auto found = inbounds_.find(id);
  if (found == inbounds_.end()) return;
  found->second.read_immediates(events_, false);
  if (found->second.voided() && found->second.left()) fence_inbound(InboundId{id});
}

void ShmFabric::on_inbound_dead(std::uint32_t id) {
  const auto found = inbounds_.find(id);
  if (found == inbounds_.end()) return;
  found->second.read_immediates(events_, true);
  inbounds_.erase(found);
  events_.push(inbound_event(FabricEvent::Kind::kInboundFenced, InboundId{id}));
}

void ShmFabric::on_outbound(std::uint32_t id) {
  Outbound* outbound = find_outbound(id);
  if (outbound == nullptr) return;
  const bool was_open = outbound->open();
  outbound->on_readable();
  if (outbound->open() && !was_open) warming_.push_back(id);
  if (outbound->open() && outbound->waits_for_writable) outbound->flush();
  after_change(*outbound);
}

void ShmFabric::on_outbound_dead(std::uint32_t id) {
  Outbound* outbound = find_outbound(id);
  if (outbound == nullptr) return;
  outbound->on_peer_dead();
  after_change(*outbound);
}

}  // namespace

Result<std::unique_ptr<Fabric>> make_shm_fabric() {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return refused("epoll_create1");
  Result<Listener> listener = Listener::open();
  if (!listener) return tl::unexpected(listener.error());
  return std::make_unique<ShmFabric>(std::move(epoll), std::move(*listener));
}

}  // namespace baton::fabric::shm
