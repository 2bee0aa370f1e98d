#include "fabric/paced/paced_fabric.h"

#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
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

}  // namespace

PacedFabric::PacedFabric(std::unique_ptr<Fabric> real, const Link& link, LinkMetrics& metrics,
                         Clock clock, UniqueFd timer)
    : real_(std::move(real)),
      link_options_(link),
      metrics_(metrics),
      clock_(std::move(clock)),
      timer_(std::move(timer)),
      link_(metrics.busy_nanoseconds, metrics.lost_nanoseconds),
      posting_(metrics.posting_nanoseconds, metrics.lost_nanoseconds) {}

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
  return registered;
}

// What waits for the poster is no demand on the link, and what waits for the link none on the
// poster: neither could have gone on by itself.
bool PacedFabric::may_post(Time now) {
  if (link_options_.post_cost > Duration{0}) {
    posting_.not_before(std::min(now, link_.free_at()));
    if (!posting_.may_begin(now, in_demand_)) return false;
    link_.not_before(posting_.free_at());
  }
  return link_.may_begin(now, in_demand_);
}

template <typename Operation>
Status PacedFabric::paced(const Operation& operation, Status (Fabric::*post)(const Operation&)) {
  const Time time = clock_();
  const bool free = may_post(time);
  in_demand_ = true;
  missed_turns_ = 0;
  if (!free) return refuse(time);
  Status posted = ((*real_).*post)(operation);
  if (posted) taken(operation.length);
  return posted;
}

Status PacedFabric::post(const Write& write) {
  return paced(write, &Fabric::post);
}

Status PacedFabric::post_read(const Read& read) {
  return paced(read, &Fabric::post_read);
}

void PacedFabric::taken(std::uint64_t bytes) {
  link_.take(time_of(bytes, link_options_.bytes_per_second));
  posting_.take(link_options_.post_cost);
  ++in_flight_;
}

Status PacedFabric::refuse(Time now) {
  metrics_.refusals.add();
  wake_at(now, std::max({link_.free_at(), posting_.free_at(), now + kTick}));
  return fail(Errc::kResourceExhausted, "the link is in use by earlier posts");
}

void PacedFabric::wake_at(Time now, Time when) {
  if (armed_) return;
  const Duration wait = when - now;
  itimerspec spec{};
  spec.it_value.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(wait).count();
  spec.it_value.tv_nsec = (wait % std::chrono::seconds(1)).count();
  BATON_CHECK(::timerfd_settime(timer_.get(), 0, &spec, nullptr) == 0);
  armed_ = true;
}

bool PacedFabric::timer_runs() {
  if (!armed_) return false;
  std::uint64_t expirations = 0;
  armed_ = ::read(timer_.get(), &expirations, sizeof expirations) != sizeof expirations;
  return armed_;
}

// Where nothing is under way and nobody came for some turns, though nothing kept them, the link
// stands still because there is nothing to send.
void PacedFabric::note_turn() {
  if (timer_runs() || in_flight_ > 0) return;
  if (++missed_turns_ > kMissedTurnsMax) in_demand_ = false;
}

std::size_t PacedFabric::poll(std::span<FabricEvent> out) {
  note_turn();
  const std::size_t count = real_->poll(out);
  for (const FabricEvent& event : out.first(count)) {
    if (!is_end_of_post(event.kind)) continue;
    BATON_CHECK(in_flight_ > 0, "a completion of nothing that was posted here");
    --in_flight_;
  }
  return count;
}

}  // namespace baton::fabric::paced
