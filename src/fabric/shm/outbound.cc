#include "fabric/shm/outbound.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "fabric/access.h"
#include "fabric/events.h"
#include "fabric/shm/copy.h"

namespace baton::fabric::shm {
namespace {

using EventKind = FabricEvent::Kind;

// What a write or a read costs beside its bytes, so that a poll of many small ones ends as well.
constexpr std::uint64_t kWriteCost = 256;

Status connect_to(int socket, const SocketName& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  static_assert(sizeof address.sun_path > 1 + sizeof(SocketName));
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    return fail(Errc::kUnavailable,
                fmt::format("connecting to the peer's socket: {}", std::strerror(errno)));
  }
  return {};
}

// Takes ownership of every descriptor that came with the message.
void collect_descriptors(msghdr& message, std::vector<UniqueFd>& out) {
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head) + i * sizeof fd, sizeof fd);
      out.emplace_back(fd);
    }
  }
}

}  // namespace

Outbound::Outbound(OutboundId id, Access access, RegionTable remote, EventRing& events)
    : id_(id), access_(access), remote_(std::move(remote)), events_(events), ring_(kPostedMax) {}

Result<std::unique_ptr<Outbound>> Outbound::start(OutboundId id, const Offer& offer,
                                                  RegionTable remote, EventRing& events) {
  std::unique_ptr<Outbound> outbound(new Outbound(id, offer.access, std::move(remote), events));
  outbound->socket_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int socket = outbound->socket_.get();
  if (socket < 0) return fail(Errc::kIo, fmt::format("socket: {}", std::strerror(errno)));
  if (Status ok = connect_to(socket, offer.socket); !ok) return tl::unexpected(ok.error());
  Result<PeerProcess> peer = PeerProcess::of(socket);
  if (!peer) return tl::unexpected(peer.error());
  outbound->peer_ = std::move(*peer);
  const std::vector<std::byte> hello = encode(Hello{offer.access, offer.token});
  if (::send(socket, hello.data(), hello.size(), MSG_NOSIGNAL) < 0) {
    return fail(Errc::kUnavailable, fmt::format("greeting the peer: {}", std::strerror(errno)));
  }
  return outbound;
}

// Connecting.

void Outbound::on_readable() {
  if (state_ == State::kOpen) {
    // The peer says nothing after its welcome: what makes the socket readable is its end, or a
    // breach.
    std::byte byte{};
    const ssize_t n = ::recv(socket_.get(), &byte, 1, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    return end(n > 0 ? "the peer broke the protocol" : "the peer closed the connection");
  }
  if (state_ != State::kConnecting) return;
  std::vector<UniqueFd> memfds;
  Result<Welcome> welcome = receive_welcome(memfds);
  if (!welcome) {
    if (welcome.error().code != Errc::kResourceExhausted) {
      connect_failed(std::move(welcome.error().message));
    }
    return;
  }
  if (Status ok = map_regions(*welcome, memfds); !ok) return connect_failed(ok.error().message);
  state_ = State::kOpen;
  events_.push(outbound_event(EventKind::kConnected, id_));
}

void Outbound::on_peer_dead() {
  if (state_ == State::kConnecting) return connect_failed("the peer's process died");
  end("the peer's process died");
}

// kResourceExhausted: nothing has come yet.
Result<Welcome> Outbound::receive_welcome(std::vector<UniqueFd>& memfds) {
  std::vector<std::byte> bytes(welcome_bytes_max(remote_.size()));
  std::vector<std::byte> control(CMSG_SPACE(kMemfdsMax * sizeof(int)));
  iovec part{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t n = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return fail(Errc::kResourceExhausted, "");
  if (n <= 0) return fail(Errc::kUnavailable, "the peer closed the connection");
  collect_descriptors(message, memfds);
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return fail(Errc::kCorrupt,
                fmt::format("welcome: longer than {} regions need", remote_.size()));
  }
  return decode_welcome(std::span(bytes).first(static_cast<std::size_t>(n)));
}

Status Outbound::map_regions(const Welcome& welcome, const std::vector<UniqueFd>& memfds) {
  if (welcome.regions.size() != remote_.size()) {
    return fail(Errc::kMismatch, fmt::format("regions: the handshake told {}, the peer has {}",
                                             remote_.size(), welcome.regions.size()));
  }
  constexpr std::uint64_t kPlaceMax = 1ULL << 62;
  struct Extent {
    std::uint64_t begin = kPlaceMax;
    std::uint64_t end = 0;
  };
  std::vector<Extent> extents(memfds.size());
  for (std::size_t i = 0; i < welcome.regions.size(); ++i) {
    const RegionPlace& region = welcome.regions[i];
    if (region.length != remote_.length(i)) {
      return fail(Errc::kMismatch, fmt::format("region {}: the handshake told {} bytes, the "
                                               "peer has {}",
                                               i, remote_.length(i), region.length));
    }
    if (region.place > kPlaceMax || region.length > kPlaceMax) {
      return fail(Errc::kCorrupt,
                  fmt::format("region {}: place {} and length {} are beyond any address or file", i,
                              region.place, region.length));
    }
    if (region.memfd == kNoMemfd) continue;
    if (region.memfd >= memfds.size()) {
      return fail(Errc::kCorrupt, fmt::format("region {}: memfd number {}, {} descriptors came", i,
                                              region.memfd, memfds.size()));
    }
    Extent& extent = extents[region.memfd];
    extent.begin = std::min(extent.begin, region.place);
    extent.end = std::max(extent.end, region.place + region.length);
  }
  for (std::size_t i = 0; i < memfds.size(); ++i) {
    mappings_.emplace_back();
    if (extents[i].end == 0) continue;
    Result<Mapping> mapping =
        Mapping::map(memfds[i].get(), extents[i].begin, extents[i].end, access_);
    if (!mapping) return tl::unexpected(mapping.error());
    mappings_.back() = std::move(*mapping);
  }
  for (const RegionPlace& region : welcome.regions) {
    if (region.memfd == kNoMemfd) {
      places_.push_back({nullptr, region.place});
    } else {
      places_.push_back({mappings_[region.memfd].at(region.place), 0});
    }
  }
  return {};
}

void Outbound::connect_failed(std::string why) {
  state_ = State::kEnded;
  socket_.reset();
  peer_ = {};
  mappings_.clear();
  events_.push(outbound_event(EventKind::kConnectFailed, id_, std::move(why)));
}

// Writing and reading.

Status Outbound::post(const Write& op, std::byte* local) {
  if (state_ != State::kOpen) {
    return fail(Errc::kNotFound, fmt::format("outbound {} is not open", id_.value));
  }
  if (Status ok = remote_.check("remote", op.remote_region, op.remote_offset, op.length); !ok) {
    return ok;
  }
  if (posted_ - told_ == kPostedMax) {
    return fail(Errc::kResourceExhausted, fmt::format("{} {} of this peer are in flight, the most "
                                                      "allowed",
                                                      kPostedMax, name_of(access_)));
  }
  Posted& entry = slot(posted_++);
  entry = {};
  entry.local = local;
  entry.length = op.length;
  entry.context = op.context;
  entry.has_immediate = op.immediate.has_value();
  entry.immediate = op.immediate.value_or(0);
  if (op.length > 0) {
    entry.remote = places_[op.remote_region];
    if (entry.remote.mapped != nullptr) {
      entry.remote.mapped += op.remote_offset;
    } else {
      entry.remote.address += op.remote_offset;
    }
  }
  return {};
}

std::uint64_t Outbound::work(std::uint64_t budget) {
  std::uint64_t spent = 0;
  while (spent < budget && has_work()) {
    Posted& entry = slot(copied_);
    const std::uint64_t bytes = std::min(entry.length - entry.done, budget - spent);
    if (bytes > 0) {
      if (Status ok = copy(entry, bytes); !ok) {
        end(ok.error().message);
        return spent + 1;
      }
    }
    entry.done += bytes;
    spent += bytes;
    if (entry.done == entry.length) {
      ++copied_;
      spent += kWriteCost;
    }
  }
  return spent;
}

Status Outbound::copy(const Posted& posted, std::uint64_t bytes) {
  if (posted.remote.mapped == nullptr) return copy_by_call(posted, bytes);
  std::byte* here = posted.local + posted.done;
  std::byte* there = posted.remote.mapped + posted.done;
  if (access_ == Access::kWrite) {
    copy_bytes(there, here, bytes);
  } else {
    copy_bytes(here, there, bytes);
  }
  return {};
}

Status Outbound::copy_by_call(const Posted& posted, std::uint64_t bytes) {
  // Process numbers are reused: only while the pidfd shows its process alive does the number name
  // it.
  if (!peer_.alive()) return fail(Errc::kUnavailable, "the peer's process is dead");
  const iovec here{posted.local + posted.done, bytes};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of another process
  const iovec there{reinterpret_cast<void*>(posted.remote.address + posted.done), bytes};
  const bool writes = access_ == Access::kWrite;
  const ssize_t n = writes ? ::process_vm_writev(peer_.pid(), &here, 1, &there, 1, 0)
                           : ::process_vm_readv(peer_.pid(), &here, 1, &there, 1, 0);
  if (n == static_cast<ssize_t>(bytes)) return {};
  return fail(Errc::kIo,
              fmt::format("process_vm_{} moved {} of {} bytes: {}", writes ? "writev" : "readv", n,
                          bytes, n < 0 ? std::strerror(errno) : "the rest is not mapped there"));
}

void Outbound::flush() {
  blocked_ = false;
  while (state_ == State::kOpen && told_ != copied_) {
    std::uint64_t batch_end = told_;
    if (!send_immediates(batch_end)) return;
    complete_until(batch_end);
  }
}

// Sends the immediates of the next writes in one datagram; false: the socket is full or gone.
bool Outbound::send_immediates(std::uint64_t& batch_end) {
  std::array<std::uint32_t, kImmediatesMax> words;
  std::size_t count = 0;
  while (batch_end != copied_ && !slot(batch_end).has_immediate) ++batch_end;
  if (batch_end != told_)
    return true;  // these need no word: complete them before a full socket can hold them
  for (; batch_end != copied_ && count < words.size(); ++batch_end) {
    if (slot(batch_end).has_immediate) words[count++] = slot(batch_end).immediate;
  }
  const ssize_t n =
      ::send(socket_.get(), words.data(), count * sizeof words[0], MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n >= 0) return true;
  if (errno == EAGAIN || errno == ENOBUFS || errno == EINTR) {
    blocked_ = true;
  } else {
    end(fmt::format("the peer closed the connection: {}", std::strerror(errno)));
  }
  return false;
}

void Outbound::complete_until(std::uint64_t mark) {
  for (; told_ != mark; ++told_) {
    events_.push(done_event(access_, id_, slot(told_).context));
  }
}

// Ending.

void Outbound::end(std::string why) {
  if (state_ == State::kEnding || state_ == State::kEnded) return;
  const std::string reason = why.empty() ? "the outbound was closed" : why;
  for (; told_ != posted_; ++told_) {
    events_.push(failed_event(access_, id_, slot(told_).context, reason));
  }
  copied_ = posted_;
  blocked_ = false;
  state_ = State::kEnding;
  peer_ = {};  // its pidfd stays readable once it is dead
  why_ = std::move(why);
}

void Outbound::unmap_some() {
  BATON_CHECK(state_ == State::kEnding);
  while (!mappings_.empty()) {
    if (mappings_.back().unmap_some()) return;
    mappings_.pop_back();
  }
  // The word that lets it give the memory to others. Should its socket be full, our death tells it.
  (void)::send(socket_.get(), kFarewell.data(), kFarewell.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  socket_.reset();
  state_ = State::kEnded;
  events_.push(outbound_event(EventKind::kOutboundClosed, id_, std::move(why_)));
}

bool Outbound::warm_some() {
  if (state_ != State::kOpen) return false;
  return std::any_of(mappings_.begin(), mappings_.end(),
                     [](Mapping& mapping) { return mapping.warm_some(); });
}

}  // namespace baton::fabric::shm
