#include "fabric/paced/paced_fabric.h"

#include <fmt/format.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/check.h"

namespace baton::fabric::paced {

namespace {

constexpr int kMissedTurnsMax = 2;

bool is_end_of_post(FabricEvent::Kind kind) {
  using Kind = FabricEvent::Kind;
  return kind == Kind::kWriteDone || kind == Kind::kWriteFailed || kind == Kind::kReadDone ||
         kind == Kind::kReadFailed;
}

OutboundId outbound_of(const Write& write) {
  return write.to;
}
OutboundId outbound_of(const Read& read) {
  return read.from;
}

FabricEvent failed(const std::variant<Write, Read>& operation, std::string_view why) {
  FabricEvent event;
  event.kind = std::holds_alternative<Read>(operation) ? FabricEvent::Kind::kReadFailed
                                                       : FabricEvent::Kind::kWriteFailed;
  event.outbound = std::visit([](const auto& o) { return outbound_of(o); }, operation);
  event.context = std::visit([](const auto& o) { return o.context; }, operation);
  event.error = why;
  event.over = true;
  return event;
}

}  // namespace

PacedFabric::PacedFabric(std::unique_ptr<Fabric> real, const Link& link, LinkMetrics& metrics,
                         Clock clock, UniqueFd timer)
    : real_(std::move(real)),
      link_options_(link),
      metrics_(metrics),
      clock_(std::move(clock)),
      timer_(std::move(timer)),
      link_(metrics.busy_nanoseconds, metrics.lost_nanoseconds),
      posting_(metrics.posting_nanoseconds, metrics.lost_nanoseconds),
      byte_time_(link.bytes_per_second) {}

Result<std::unique_ptr<PacedFabric>> PacedFabric::create(std::unique_ptr<Fabric> real,
                                                         const Link& link, LinkMetrics& metrics,
                                                         Clock clock) {
  BATON_CHECK(real != nullptr && link.post_cost >= Duration{0});
  UniqueFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer) return fail(Errc::kIo, std::string("timerfd_create: ") + std::strerror(errno));
  std::unique_ptr<PacedFabric> made(
      new PacedFabric(std::move(real), link, metrics, std::move(clock), std::move(timer)));
  made->take_capabilities();
  return made;
}

// A write is not longer than what the link carries in a short while, so that nothing lands much
// before its time.
void PacedFabric::take_capabilities() {
  capabilities_ = real_->capabilities();
  if (link_options_.bytes_per_second == 0) return;
  const std::uint64_t most =
      std::max(kWriteBytesLeast, bytes_in(kWriteTime, link_options_.bytes_per_second));
  capabilities_.write_bytes_max = std::min(capabilities_.write_bytes_max, most);
}

Status PacedFabric::register_regions(std::span<const Region> regions) {
  Status registered = real_->register_regions(regions);
  take_capabilities();
  if (!registered) return registered;
  Result<RegionTable> table = RegionTable::make(regions);
  if (!table) return tl::unexpected(table.error());
  local_ = std::move(*table);
  return {};
}

Result<OutboundId> PacedFabric::connect(const PeerId& peer, std::span<const std::byte> offer,
                                        std::span<const Region> regions) {
  Result<RegionTable> remote = RegionTable::make(regions);
  if (!remote) return tl::unexpected(remote.error());
  Result<OutboundId> id = real_->connect(peer, offer, regions);
  if (id) outbounds_[id->value] = {std::move(*remote), false};
  return id;
}

void PacedFabric::close_outbound(OutboundId outbound) {
  const auto found = outbounds_.find(outbound.value);
  if (found != outbounds_.end()) found->second.open = false;
  fail_queued(outbound, "closed before the link had room");
  real_->close_outbound(outbound);
}

void PacedFabric::fail_queued(OutboundId outbound, std::string_view why) {
  std::erase_if(queue_, [&](const Operation& operation) {
    if (std::visit([](const auto& o) { return outbound_of(o); }, operation) != outbound) {
      return false;
    }
    told_.push_back(failed(operation, why));
    return true;
  });
}

Status PacedFabric::post(const Write& write) {
  return take(write);
}

Status PacedFabric::post_read(const Read& read) {
  return take(read);
}

Status PacedFabric::take(const Operation& operation) {
  const Time time = clock_();
  move_queue(time);
  const bool in_demand = std::exchange(in_demand_, true);
  missed_turns_ = 0;
  if (is_full()) {
    posting_.not_before(time);  // the poster waits for the link: nothing to catch up
    return refuse("the link's queue is full");
  }
  if (link_options_.post_cost > Duration{0} && !posting_.may_begin(time, in_demand)) {
    wake_at(time, std::max(posting_.free_at(), time + kTick));
    return refuse("the poster is busy with the operation before");
  }
  if (queue_.empty() && link_.may_begin(time, false)) {
    Status forwarded = forward(operation);
    if (!forwarded) return forwarded;
  } else {
    if (Status fits = check(operation); !fits) return fits;
    queue_.push_back(operation);
    wake_at(time, std::max(link_.free_at(), time + kTick));
  }
  posting_.take(link_options_.post_cost);
  return {};
}

Status PacedFabric::check(const Operation& operation) const {
  const auto check = [this]<typename T>(const T& o) -> Status {
    const auto found = outbounds_.find(outbound_of(o).value);
    if (found == outbounds_.end() || !found->second.open) {
      return fail(Errc::kNotFound, fmt::format("outbound {} is not open", outbound_of(o).value));
    }
    Status local = local_.check("local", o.local_region, o.local_offset, o.length);
    if (!local) return local;
    if (std::is_same_v<T, Read> && o.length == 0) {
      return fail(Errc::kInvalidArgument, "a read of 0 bytes");
    }
    const std::uint64_t most = real_->capabilities().write_bytes_max;
    if (o.length > most) {
      return fail(Errc::kInvalidArgument,
                  fmt::format("an operation of {} bytes, at most {}", o.length, most));
    }
    return found->second.remote.check("remote", o.remote_region, o.remote_offset, o.length);
  };
  return std::visit(check, operation);
}

Status PacedFabric::forward(const Operation& operation) {
  const auto* write = std::get_if<Write>(&operation);
  Status posted =
      write != nullptr ? real_->post(*write) : real_->post_read(std::get<Read>(operation));
  if (!posted) return posted;
  const std::uint64_t bytes = std::visit([](const auto& o) { return o.length; }, operation);
  link_.take(byte_time_.of(bytes));
  ++in_flight_;
  return posted;
}

// What waits here is what a real link would have gone on with by itself.
void PacedFabric::move_queue(Time now) {
  while (!queue_.empty() && link_.may_begin(now, true)) {
    if (Status posted = forward(queue_.front()); !posted) {
      if (posted.error().code == Errc::kResourceExhausted) return;  // a completion comes first
      told_.push_back(failed(queue_.front(), posted.error().message));
    }
    queue_.pop_front();
  }
  if (!queue_.empty()) wake_at(now, std::max(link_.free_at(), now + kTick));
}

Status PacedFabric::refuse(std::string_view why) {
  metrics_.refusals.add();
  return fail(Errc::kResourceExhausted, std::string(why));
}

void PacedFabric::wake_at(Time now, Time when) {
  if (armed_ && armed_for_ <= when) return;
  const Duration wait = when - now;
  itimerspec spec{};
  spec.it_value.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(wait).count();
  spec.it_value.tv_nsec = (wait % std::chrono::seconds(1)).count();
  BATON_CHECK(::timerfd_settime(timer_.get(), 0, &spec, nullptr) == 0);
  armed_ = true;
  armed_for_ = when;
}

void PacedFabric::timer_read() {
  std::uint64_t expirations = 0;
  if (armed_) armed_ = ::read(timer_.get(), &expirations, sizeof expirations) < 0;
}

// A poster that is free, and for some turns was not asked for anything, stands still because there
// is nothing to post.
void PacedFabric::note_turn(Time now) {
  if (posting_.free_at() > now) return;
  if (++missed_turns_ > kMissedTurnsMax) in_demand_ = false;
}

std::size_t PacedFabric::poll(std::span<FabricEvent> out) {
  const Time time = clock_();
  timer_read();
  move_queue(time);
  std::size_t count = 0;
  for (; count < out.size() && !told_.empty(); ++count) {
    out[count] = std::move(told_.front());
    told_.pop_front();
  }
  const std::span<FabricEvent> rest = out.subspan(count);
  const std::size_t real = real_->poll(rest);
  for (FabricEvent& event : rest.first(real)) {
    if (!on_event(event)) continue;
    if (&out[count] != &event) out[count] = std::move(event);
    ++count;
  }
  if (real > 0) move_queue(clock_());  // it may have been full
  note_turn(time);
  return count;
}

// False: it is told later, behind the failures of what still waited here.
bool PacedFabric::on_event(FabricEvent& event) {
  using Kind = FabricEvent::Kind;
  if (is_end_of_post(event.kind)) {
    BATON_CHECK(in_flight_ > 0, "a completion of nothing that was posted here");
    --in_flight_;
  }
  const std::size_t told = told_.size();
  if (event.kind == Kind::kConnected) outbounds_[event.outbound.value].open = true;
  if (event.kind == Kind::kConnectFailed || event.kind == Kind::kOutboundClosed) {
    outbounds_.erase(event.outbound.value);
    fail_queued(event.outbound, event.error);
  }
  if (told_.size() == told) return true;
  told_.push_back(std::move(event));
  return false;
}

}  // namespace baton::fabric::paced
