#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "fabric/testing/node.h"

namespace baton::fabric::testing {
namespace {

enum class Call : std::uint8_t {
  kOpenInbound,
  kFence,
  kConnect,
  kClose,
  kPost,
  kPostReads,
  kPoll,
  kBusy,
  kFill,
  kRead,
  kCapabilities,
  kRegions
};

// Both ends are one program: values go over as they lie in memory, lengths before bytes.
class Packet {
 public:
  Packet() = default;
  explicit Packet(Bytes bytes) : bytes_(std::move(bytes)) {}
  const Bytes& bytes() const { return bytes_; }

  template <typename T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    append(&value, sizeof value);
  }
  template <typename T>
  T get() {
    T value;
    BATON_CHECK(at_ + sizeof value <= bytes_.size());
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  template <typename Container>
  void put_bytes(const Container& data) {
    put(data.size());
    append(data.data(), data.size());
  }
  template <typename Container>
  Container get_bytes() {
    Container data(get<std::size_t>(), typename Container::value_type{});
    BATON_CHECK(at_ + data.size() <= bytes_.size());
    if (!data.empty()) std::memcpy(data.data(), bytes_.data() + at_, data.size());
    at_ += data.size();
    return data;
  }
  void put_peer(const PeerId& peer) {
    put_bytes(peer.engine_id);
    put(peer.incarnation);
  }
  PeerId get_peer() {
    PeerId peer;
    peer.engine_id = get_bytes<std::string>();
    peer.incarnation = get<std::uint64_t>();
    return peer;
  }
  void put_error(const Error& error) {
    put(error.code);
    put_bytes(error.message);
  }
  Error get_error() {
    const auto code = get<Errc>();
    return {code, get_bytes<std::string>()};
  }
  void put_regions(const std::vector<Region>& regions) {
    put(regions.size());
    for (const Region& region : regions) {
      put_bytes(region.name);
      put(region.stride_bytes);
      put(region.block_bytes);
      put(region.num_blocks);
    }
  }
  std::vector<Region> get_regions() {
    std::vector<Region> regions(get<std::size_t>());
    for (Region& region : regions) {
      region.name = get_bytes<std::string>();
      region.stride_bytes = get<std::uint64_t>();
      region.block_bytes = get<std::uint64_t>();
      region.num_blocks = get<std::uint32_t>();
    }
    return regions;
  }

 private:
  void append(const void* data, std::size_t size) {
    const std::size_t end = bytes_.size();
    bytes_.resize(end + size);
    if (size > 0) std::memcpy(bytes_.data() + end, data, size);
  }

  Bytes bytes_;
  std::size_t at_ = 0;
};

bool send_all(int fd, const void* data, std::size_t size) {
  const auto* at = static_cast<const std::byte*>(data);
  while (size > 0) {
    const ssize_t n = ::send(fd, at, size, MSG_NOSIGNAL);
    if (n <= 0) return false;
    at += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

bool receive_all(int fd, void* data, std::size_t size) {
  auto* at = static_cast<std::byte*>(data);
  while (size > 0) {
    const ssize_t n = ::recv(fd, at, size, 0);
    if (n <= 0) return false;
    at += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

bool send_packet(int fd, const Packet& packet) {
  const std::size_t size = packet.bytes().size();
  return send_all(fd, &size, sizeof size) && send_all(fd, packet.bytes().data(), size);
}

bool receive_packet(int fd, Packet& packet) {
  std::size_t size = 0;
  if (!receive_all(fd, &size, sizeof size)) return false;
  Bytes bytes(size);
  if (!receive_all(fd, bytes.data(), size)) return false;
  packet = Packet(std::move(bytes));
  return true;
}

void open_inbound(Node& node, Packet& request, Packet& reply) {
  const PeerId peer = request.get_peer();
  const auto inbound = node.open_inbound(peer, request.get<Access>());
  reply.put(inbound.has_value());
  if (!inbound) return reply.put_error(inbound.error());
  reply.put(inbound->id);
  reply.put_bytes(inbound->offer);
}

void connect(Node& node, Packet& request, Packet& reply) {
  const PeerId receiver = request.get_peer();
  const auto offer = request.get_bytes<Bytes>();
  const auto outbound = node.connect(receiver, offer, request.get_regions());
  reply.put(outbound.has_value());
  if (!outbound) return reply.put_error(outbound.error());
  reply.put(*outbound);
}

template <typename Op>
std::vector<Op> get_posts(Packet& request) {
  std::vector<Op> posts(request.get<std::size_t>());
  for (Op& post : posts) post = request.get<Op>();
  return posts;
}

void put_posted(const Node::Posted& posted, Packet& reply) {
  reply.put(posted.accepted);
  reply.put(posted.status.has_value());
  if (!posted.status) reply.put_error(posted.status.error());
}

void put_events(const std::vector<FabricEvent>& events, Packet& reply) {
  reply.put(events.size());
  for (const FabricEvent& event : events) {
    reply.put(event.kind);
    reply.put(event.inbound);
    reply.put(event.outbound);
    reply.put(event.immediate);
    reply.put(event.context);
    reply.put_bytes(event.error);
    reply.put(event.over);
  }
}

void put_capabilities(const Capabilities& limits, Packet& reply) {
  reply.put_bytes(limits.name);
  reply.put(limits.reads);
  reply.put(limits.delivery_complete);
  reply.put(limits.writes_in_flight_max);
  reply.put(limits.write_bytes_max);
  reply.put(limits.immediates_max);
}

Packet obey(Node& node, Packet& request) {
  Packet reply;
  switch (request.get<Call>()) {
    case Call::kOpenInbound:
      open_inbound(node, request, reply);
      break;
    case Call::kFence:
      node.fence_inbound(request.get<InboundId>());
      break;
    case Call::kConnect:
      connect(node, request, reply);
      break;
    case Call::kClose:
      node.close_outbound(request.get<OutboundId>());
      break;
    case Call::kPost:
      put_posted(node.post(get_posts<Write>(request)), reply);
      break;
    case Call::kPostReads:
      put_posted(node.post_reads(get_posts<Read>(request)), reply);
      break;
    case Call::kPoll:
      put_events(node.poll(request.get<std::size_t>()), reply);
      break;
    case Call::kBusy:
      reply.put(node.busy());
      break;
    case Call::kFill: {
      const auto offset = request.get<std::uint64_t>();
      const auto length = request.get<std::uint64_t>();
      node.fill(offset, length, request.get<std::uint32_t>());
      break;
    }
    case Call::kRead: {
      const auto offset = request.get<std::uint64_t>();
      reply.put_bytes(node.read(offset, request.get<std::uint64_t>()));
      break;
    }
    case Call::kCapabilities:
      put_capabilities(node.capabilities(), reply);
      break;
    case Call::kRegions:
      reply.put_regions(node.regions());
      break;
  }
  return reply;
}

[[noreturn]] void serve(int fd, const std::function<std::unique_ptr<Node>()>& make) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  {
    const std::unique_ptr<Node> node = make();
    Packet request;
    while (receive_packet(fd, request) && send_packet(fd, obey(*node, request))) {
    }
  }
  ::_exit(0);
}

class ChildNode final : public RemoteNode {
 public:
  ChildNode(pid_t pid, UniqueFd socket) : pid_(pid), socket_(std::move(socket)) {}
  ~ChildNode() override {
    if (reaped_) return;
    ::kill(pid_, SIGCONT);
    // Not merely closed: children forked later hold copies of this descriptor.
    ::shutdown(socket_.get(), SHUT_RDWR);
    ::waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const override { return pid_; }
  void signal(int number) override {
    BATON_CHECK(::kill(pid_, number) == 0);
    if (number == SIGKILL) {
      ::waitpid(pid_, nullptr, 0);
      reaped_ = true;
    } else if (number == SIGSTOP) {
      ::waitpid(pid_, nullptr, WUNTRACED);
    }
  }

  Result<Fabric::Inbound> open_inbound(const PeerId& peer, Access access) override {
    Packet request = start(Call::kOpenInbound);
    request.put_peer(peer);
    request.put(access);
    Packet reply = ask(request);
    if (!reply.get<bool>()) return tl::unexpected(reply.get_error());
    const auto id = reply.get<InboundId>();
    return Fabric::Inbound{id, reply.get_bytes<Bytes>()};
  }
  void fence_inbound(InboundId inbound) override {
    Packet request = start(Call::kFence);
    request.put(inbound);
    ask(request);
  }
  Result<OutboundId> connect(const PeerId& peer, const Bytes& offer,
                             const std::vector<Region>& regions) override {
    Packet request = start(Call::kConnect);
    request.put_peer(peer);
    request.put_bytes(offer);
    request.put_regions(regions);
    Packet reply = ask(request);
    if (!reply.get<bool>()) return tl::unexpected(reply.get_error());
    return reply.get<OutboundId>();
  }
  void close_outbound(OutboundId outbound) override {
    Packet request = start(Call::kClose);
    request.put(outbound);
    ask(request);
  }
  Posted post(const std::vector<Write>& writes) override {
    Packet request = start(Call::kPost);
    request.put(writes.size());
    for (const Write& write : writes) request.put(write);
    return ask_posted(request);
  }
  Posted post_reads(const std::vector<Read>& reads) override {
    Packet request = start(Call::kPostReads);
    request.put(reads.size());
    for (const Read& read : reads) request.put(read);
    return ask_posted(request);
  }
  std::vector<FabricEvent> poll(std::size_t max) override {
    Packet request = start(Call::kPoll);
    request.put(max);
    Packet reply = ask(request);
    std::vector<FabricEvent> events(reply.get<std::size_t>());
    for (FabricEvent& event : events) {
      event.kind = reply.get<FabricEvent::Kind>();
      event.inbound = reply.get<InboundId>();
      event.outbound = reply.get<OutboundId>();
      event.immediate = reply.get<std::uint32_t>();
      event.context = reply.get<std::uint64_t>();
      event.error = reply.get_bytes<std::string>();
      event.over = reply.get<bool>();
    }
    return events;
  }
  bool busy() override {
    Packet request = start(Call::kBusy);
    return ask(request).get<bool>();
  }
  void fill(std::uint64_t offset, std::uint64_t length, std::uint32_t seed) override {
    Packet request = start(Call::kFill);
    request.put(offset);
    request.put(length);
    request.put(seed);
    ask(request);
  }
  Bytes read(std::uint64_t offset, std::uint64_t length) override {
    Packet request = start(Call::kRead);
    request.put(offset);
    request.put(length);
    return ask(request).get_bytes<Bytes>();
  }
  Capabilities capabilities() override {
    Packet request = start(Call::kCapabilities);
    Packet reply = ask(request);
    Capabilities limits;
    limits.name = reply.get_bytes<std::string>();
    limits.reads = reply.get<bool>();
    limits.delivery_complete = reply.get<bool>();
    limits.writes_in_flight_max = reply.get<std::uint32_t>();
    limits.write_bytes_max = reply.get<std::uint64_t>();
    limits.immediates_max = reply.get<std::uint32_t>();
    return limits;
  }
  std::vector<Region> regions() override {
    Packet request = start(Call::kRegions);
    return ask(request).get_regions();
  }

 private:
  static Packet start(Call call) {
    Packet packet;
    packet.put(call);
    return packet;
  }
  Posted ask_posted(const Packet& request) {
    Packet reply = ask(request);
    Posted posted;
    posted.accepted = reply.get<std::size_t>();
    if (!reply.get<bool>()) posted.status = tl::unexpected(reply.get_error());
    return posted;
  }
  // Of a dead child: nothing happens and every answer is zero.
  Packet ask(const Packet& request) {
    Packet reply;
    if (reaped_) return Packet(Bytes(512));
    BATON_CHECK(send_packet(socket_.get(), request) && receive_packet(socket_.get(), reply),
                "the child process {} does not answer", pid_);
    return reply;
  }

  pid_t pid_;
  UniqueFd socket_;
  bool reaped_ = false;
};

}  // namespace

std::unique_ptr<RemoteNode> make_remote_node(std::function<std::unique_ptr<Node>()> make) {
  int fds[2] = {-1, -1};
  BATON_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  const pid_t pid = ::fork();
  BATON_CHECK(pid >= 0);
  if (pid == 0) {
    ::close(fds[0]);
    serve(fds[1], make);
  }
  ::close(fds[1]);
  return std::make_unique<ChildNode>(pid, UniqueFd(fds[0]));
}

}  // namespace baton::fabric::testing
