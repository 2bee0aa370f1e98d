#include "fabric/libfabric/outbound.h"

#include <fmt/format.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <utility>

#include "base/check.h"
#include "fabric/access.h"
#include "fabric/events.h"

namespace baton::fabric::libfabric {

using Kind = FabricEvent::Kind;

static_assert(sizeof(fi_context2) == sizeof(std::array<void*, 8>));

Outbound::Outbound(OutboundId id, const Device& device, Endpoint endpoint, Offer offer,
                   RegionTable remote, EventRing& events)
    : id_(id),
      device_(device),
      endpoint_(std::move(endpoint)),
      offer_(std::move(offer)),
      remote_(std::move(remote)),
      events_(events),
      connecting_since_(now()),
      slots_(device.traits().queue + 1) {
  for (std::uint32_t i = static_cast<std::uint32_t>(slots_.size()) - 1; i > kProbe; --i) {
    free_.push_back(i);
  }
}

Outbound::~Outbound() {
  endpoint_.close();
}

Result<std::unique_ptr<Outbound>> Outbound::start(OutboundId id, const Device& device, Offer offer,
                                                  RegionTable remote, EventRing& events) {
  Result<Endpoint> endpoint = Endpoint::open(device, device.traits().queue + 1);
  if (!endpoint) return tl::unexpected(endpoint.error());
  std::unique_ptr<Outbound> outbound(
      new Outbound(id, device, std::move(*endpoint), std::move(offer), std::move(remote), events));
  if (Status ok = outbound->check_offer(device); !ok) return tl::unexpected(ok.error());
  const auto destination = outbound->endpoint_.insert(outbound->offer_.rails.front().address);
  if (!destination) return tl::unexpected(destination.error());
  outbound->destination_ = *destination;
  if (Status ok = outbound->prepare_probe(); !ok) return tl::unexpected(ok.error());
  outbound->waiting_.push_back(kProbe);
  outbound->issue_waiting();
  return outbound;
}

// What connects. A write of nothing needs no memory on either side; a read of nothing is a case
// that providers leave out, so a reader takes the first byte, into a place of its own.
Status Outbound::prepare_probe() {
  Slot& probe = slots_[kProbe];
  probe.used = true;
  probe.address = offer_.places.front().base;
  probe.key = offer_.places.front().key;
  if (access() == Access::kWrite) return {};
  probe.local = &probe_byte_;
  probe.length = 1;
  if (!device_.traits().local_keys) return {};
  auto key = device_.register_memory(endpoint_.domain(), {&probe_byte_, 1}, Device::Use::kLocal);
  if (!key) return tl::unexpected(key.error());
  probe_key_ = std::move(*key);
  probe.descriptor = fi_mr_desc(probe_key_.get());
  return {};
}

Status Outbound::check_offer(const Device& device) const {
  const auto differs = [](std::string_view field, const auto& ours, const auto& theirs) {
    return fail(Errc::kMismatch,
                fmt::format("offer: {}: ours is {}, theirs is {}", field, ours, theirs));
  };
  const Traits& traits = device.traits();
  if (access() == Access::kRead && !traits.reads) {
    return fail(Errc::kUnsupported, fmt::format("offer: of reads, fabric provider {} has none: {}",
                                                traits.provider, traits.why_no_reads));
  }
  if (offer_.provider != traits.provider) {
    return differs("fabric provider", traits.provider, offer_.provider);
  }
  if (offer_.address_format != traits.address_format) {
    return differs("address format", traits.address_format, offer_.address_format);
  }
  const Result<std::vector<std::byte>> own = endpoint_.address();
  if (!own) return tl::unexpected(own.error());
  if (offer_.rails.front().address.size() != own->size()) {
    return differs("address bytes", own->size(), offer_.rails.front().address.size());
  }
  if (remote_.size() == 0 || offer_.places.size() != remote_.size()) {
    return fail(Errc::kMismatch, fmt::format("offer: {} regions, the handshake told {}",
                                             offer_.places.size(), remote_.size()));
  }
  for (std::size_t i = 0; i < remote_.size(); ++i) {
    if (offer_.places[i].length == remote_.length(i)) continue;
    return fail(Errc::kMismatch, fmt::format("offer: region {} has {} bytes, the handshake told {}",
                                             i, offer_.places[i].length, remote_.length(i)));
  }
  return {};
}

std::uint32_t Outbound::index_of(const void* context) const {
  const auto* slot = static_cast<const Slot*>(context);
  BATON_CHECK(slot >= slots_.data() && slot < slots_.data() + slots_.size());
  return static_cast<std::uint32_t>(slot - slots_.data());
}

Status Outbound::post(const Write& op, std::byte* local, void* descriptor) {
  if (state_ != State::kOpen) {
    return fail(Errc::kNotFound, fmt::format("outbound {} is not open", id_.value));
  }
  if (Status ok = remote_.check("remote", op.remote_region, op.remote_offset, op.length); !ok) {
    return ok;
  }
  if (free_.empty()) {
    return fail(Errc::kResourceExhausted,
                fmt::format("{} {} are posted to outbound {}", slots_.size() - 1, name_of(access()),
                            id_.value));
  }
  const std::uint32_t index = free_.back();
  free_.pop_back();
  Slot& slot = slots_[index];
  const Offer::Place& place = offer_.places[op.length == 0 ? 0 : op.remote_region];
  slot.used = true;
  slot.local = local;
  slot.descriptor = descriptor;
  slot.address = place.base + (op.length == 0 ? 0 : op.remote_offset);
  slot.key = place.key;
  slot.length = op.length;
  slot.context = op.context;
  slot.immediate = op.immediate;
  waiting_.push_back(index);
  issue_waiting();
  return {};
}

void Outbound::issue_waiting() {
  while (!waiting_.empty()) {
    const std::uint32_t index = waiting_.front();
    const int rc = issue(slots_[index]);
    if (rc == -FI_EAGAIN) return;
    if (rc != 0) {
      const bool writes = access() == Access::kWrite;
      return end(fmt::format("fi_{}msg: {}", writes ? "write" : "read", fi_strerror(-rc)));
    }
    waiting_.pop_front();
    ++issued_;
  }
}

int Outbound::issue(Slot& slot) {
  // Some providers want an address even of nothing.
  static std::byte nothing{};
  iovec local{slot.length == 0 ? &nothing : slot.local, slot.length};
  fi_rma_iov remote{slot.address, slot.length, slot.key};
  fi_msg_rma message{};
  message.msg_iov = &local;
  message.desc = &slot.descriptor;
  message.iov_count = 1;
  message.addr = destination_;
  message.rma_iov = &remote;
  message.rma_iov_count = 1;
  message.context = &slot;
  std::uint64_t flags = FI_COMPLETION;
  // The completion of a read says that its bytes are here.
  if (access() == Access::kRead) {
    return static_cast<int>(fi_readmsg(endpoint_.get(), &message, flags));
  }
  if (device_.traits().delivery_complete) flags |= FI_DELIVERY_COMPLETE;
  if (slot.immediate && !(device_.traits().split_immediates && slot.length > 0)) {
    flags |= FI_REMOTE_CQ_DATA;
    message.data = *slot.immediate;
  }
  return static_cast<int>(fi_writemsg(endpoint_.get(), &message, flags));
}

bool Outbound::work() {
  if (state_ == State::kEnded) return false;  // a post ended it: its queue is closed
  bool more = false;
  std::string why;
  complete_found(more, why);
  if (!why.empty()) {
    end(std::move(why));
  } else if (state_ != State::kEnded) {
    issue_waiting();
  }
  return more && state_ != State::kEnded;
}

void Outbound::complete_found(bool& more, std::string& why) {
  std::optional<Endpoint::Failure> failure;
  const auto found = endpoint_.read(failure);
  for (const Endpoint::Completion& completion : found) {
    // Somebody wrote here unasked: no region of ours is open for that, so nothing landed.
    if (completion.immediate || completion.context == nullptr) continue;
    complete(index_of(completion.context));
  }
  more = found.size() == Endpoint::kBatch;
  if (failure) why = fi_strerror(failure->code);
}

void Outbound::complete(std::uint32_t index) {
  Slot& slot = slots_[index];
  BATON_CHECK(slot.used, "a completion of what was not posted");
  --issued_;
  if (index == kProbe) {
    slot.used = false;
    state_ = State::kOpen;
    connecting_since_ = kNever;
    return events_.push(outbound_event(Kind::kConnected, id_));
  }
  if (slot.immediate && slot.length > 0 && device_.traits().split_immediates) {
    slot.length = 0;  // the bytes are there: now the immediate
    slot.address = offer_.places.front().base;
    slot.key = offer_.places.front().key;
    return waiting_.push_back(index);
  }
  events_.push(done_event(access(), id_, slot.context));
  slot.used = false;
  free_.push_back(index);
}

void Outbound::end(std::string why) {
  if (state_ == State::kEnded) return;
  const bool was_open = state_ == State::kOpen;
  state_ = State::kEnded;
  // What had completed is done; the rest may have landed or not. Before the close: afterwards the
  // queue must not be read. After it nothing that was read lands here: failed reads are over.
  waiting_.clear();
  bool more = true;
  for (std::size_t looks = 0; looks <= slots_.size() && more; ++looks) {
    std::optional<Endpoint::Failure> failure;
    const auto found = endpoint_.read(failure);
    for (const Endpoint::Completion& completion : found) {
      if (completion.immediate || completion.context == nullptr) continue;
      const std::uint32_t index = index_of(completion.context);
      if (index == kProbe) continue;
      if (slots_[index].immediate && slots_[index].length > 0 &&
          device_.traits().split_immediates) {
        continue;  // its immediate will never leave
      }
      complete(index);
    }
    more = !found.empty() || (failure && failure->context != nullptr);
  }
  endpoint_.close();
  const std::string reason = why.empty() ? "the outbound was closed" : why;
  for (std::uint32_t i = kProbe + 1; i < slots_.size(); ++i) {
    if (slots_[i].used) {
      events_.push(failed_event(access(), id_, slots_[i].context, reason));
    }
    slots_[i].used = false;
  }
  const bool never_connected = !was_open && !why.empty();
  events_.push(outbound_event(never_connected ? Kind::kConnectFailed : Kind::kOutboundClosed, id_,
                              std::move(why)));
}

}  // namespace baton::fabric::libfabric
