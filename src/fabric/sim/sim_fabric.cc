#include "fabric/sim/sim_fabric.h"

#include <utility>

#include "base/check.h"
#include "fabric/sim/sim_core.h"

namespace baton::fabric::sim {

class Endpoint final : public Fabric {
 public:
  Endpoint(std::shared_ptr<Network::Core> core, EndpointKey key)
      : core_(std::move(core)), key_(key) {}
  ~Endpoint() override { core_->crash(key_); }

  const Capabilities& capabilities() const override { return core_->capabilities(); }
  Status register_regions(std::span<const Region> regions) override {
    return core_->register_regions(key_, regions);
  }
  Result<Inbound> open_inbound(const PeerId& peer, Access access) override {
    return core_->open_inbound(key_, peer, access);
  }
  void fence_inbound(InboundId inbound) override { core_->fence_inbound(key_, inbound); }
  Result<OutboundId> connect(const PeerId& receiver, std::span<const std::byte> offer,
                             std::span<const Region> regions) override {
    return core_->connect(key_, receiver, offer, regions);
  }
  void close_outbound(OutboundId outbound) override { core_->close_outbound(key_, outbound); }
  Status post(const Write& write) override { return core_->post(key_, write); }
  Status post_read(const Read& read) override { return core_->post_read(key_, read); }
  std::size_t poll(std::span<FabricEvent> out) override { return core_->poll(key_, out); }
  bool busy() const override { return core_->has_events(key_); }
  int wait_fd() const override { return core_->wait_fd(key_); }

 private:
  std::shared_ptr<Network::Core> core_;
  EndpointKey key_;
};

Network::Network(std::uint64_t seed, const Options& options)
    : core_(std::make_shared<Core>(seed, options)) {}
Network::~Network() = default;

std::unique_ptr<Fabric> Network::make_endpoint(const PeerId& self) {
  BATON_CHECK(!core_->find_alive(self), "{} is alive already", self.to_string());
  return std::make_unique<Endpoint>(core_, core_->add_endpoint(self));
}

Time Network::now() const {
  return core_->now();
}
Time Network::next_due() const {
  return core_->next_due();
}
void Network::advance_to(Time now) {
  core_->advance_to(now);
}
std::size_t Network::pending() const {
  return core_->pending();
}
std::string Network::describe(std::size_t index) const {
  return core_->describe(index);
}
void Network::fire(std::size_t index) {
  core_->fire(index);
}
bool Network::step() {
  return core_->step();
}
void Network::settle() {
  while (core_->step()) {
  }
}
void Network::crash(const PeerId& self) {
  if (const auto key = core_->find_alive(self)) core_->crash(*key);
}
void Network::fence(const PeerId& receiver, const PeerId& writer) {
  core_->fence(receiver, writer);
}
void Network::fail_writes(const PeerId& writer, const PeerId& receiver, std::uint32_t count) {
  core_->fail_writes({writer, receiver}, count);
}
void Network::fail_reads(const PeerId& reader, const PeerId& source, std::uint32_t count) {
  core_->fail_reads({reader, source}, count);
}
void Network::set_failures(std::uint32_t writes_per_1000, std::uint32_t connects_per_1000) {
  core_->set_failures(writes_per_1000, connects_per_1000);
}
void Network::hold(const PeerId& writer, const PeerId& receiver, bool held) {
  core_->hold({writer, receiver}, held);
}
const Stats& Network::stats() const {
  return core_->stats();
}

}  // namespace baton::fabric::sim
