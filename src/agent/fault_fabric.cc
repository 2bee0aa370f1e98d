#include "agent/fault_fabric.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <thread>

#include "base/log.h"

namespace baton {

Result<Fault> Fault::parse(std::string_view text) {
  Fault fault;
  const auto colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  if (kind == "flip_byte") {
    fault.kind = Kind::kFlipByte;
  } else if (kind == "drop_write") {
    fault.kind = Kind::kDropWrite;
  } else if ((kind == "hold_writes" || kind == "hold_reads") && colon != std::string_view::npos) {
    fault.kind = kind == "hold_reads" ? Kind::kHoldReads : Kind::kHoldWrites;
    fault.hold_path = text.substr(colon + 1);
    return fault;
  } else {
    return fail(Errc::kInvalidArgument,
                fmt::format("BATON_FAULT is '{}', known are flip_byte[:n], drop_write[:n], "
                            "hold_writes:PATH and hold_reads:PATH",
                            text));
  }
  if (colon == std::string_view::npos) return fault;
  const std::string_view number = text.substr(colon + 1);
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), fault.write_number);
  if (error != std::errc{} || end != number.data() + number.size() || fault.write_number == 0) {
    return fail(Errc::kInvalidArgument,
                fmt::format("BATON_FAULT counts writes from 1, '{}' is no such count", number));
  }
  return fault;
}

FaultFabric::FaultFabric(std::unique_ptr<fabric::Fabric> real, const Fault& fault)
    : real_(std::move(real)), fault_(fault) {
  if (fault.kind == Fault::Kind::kHoldWrites || fault.kind == Fault::Kind::kHoldReads) {
    log::warning("BATON_FAULT is set: {} wait while {} exists",
                 fault.kind == Fault::Kind::kHoldReads ? "reads" : "writes", fault.hold_path);
  } else {
    log::warning("BATON_FAULT is set: write {} will be broken on purpose", fault.write_number);
  }
}

FaultFabric::~FaultFabric() {
  invert(inverted_);
}

Status FaultFabric::register_regions(std::span<const Region> regions) {
  regions_.assign(regions.begin(), regions.end());
  return real_->register_regions(regions);
}

void FaultFabric::invert(std::byte* place) {
  if (place != nullptr) *place = ~*place;
}

bool FaultFabric::must_hold(Fault::Kind kind) const {
  return fault_.kind == kind && access(fault_.hold_path.c_str(), F_OK) == 0;
}

Status FaultFabric::post(const fabric::Write& write) {
  if (write.length > 0 && must_hold(Fault::Kind::kHoldWrites)) {
    held_.push_back(write);
    return {};
  }
  const bool breaks =
      fault_.kind == Fault::Kind::kFlipByte || fault_.kind == Fault::Kind::kDropWrite;
  const bool broken = breaks && write.length > 0 && data_writes_ + 1 == fault_.write_number;
  if (broken) return post_broken(write);
  auto posted = real_->post(write);
  if (posted && write.length > 0) ++data_writes_;
  return posted;
}

Status FaultFabric::post_broken(const fabric::Write& write) {
  if (fault_.kind == Fault::Kind::kDropWrite) {
    ++data_writes_;
    fabric::FabricEvent done;
    done.kind = fabric::FabricEvent::Kind::kWriteDone;
    done.outbound = write.to;
    done.context = write.context;
    made_up_.push_back(done);
    if (!write.immediate) return {};
    fabric::Write only_immediate = write;
    only_immediate.length = 0;
    made_up_.pop_back();  // the completion of what is really posted comes by itself
    return real_->post(only_immediate);
  }
  std::byte* place = regions_[write.local_region].base + write.local_offset + write.length / 2;
  invert(place);
  auto posted = real_->post(write);
  if (!posted) {
    invert(place);
    return posted;
  }
  ++data_writes_;
  inverted_ = place;
  inverted_context_ = write.context;
  return {};
}

void FaultFabric::close_outbound(fabric::OutboundId outbound) {
  fail_held(outbound);
  real_->close_outbound(outbound);
}

Status FaultFabric::post_read(const fabric::Read& read) {
  if (!must_hold(Fault::Kind::kHoldReads)) return real_->post_read(read);
  held_reads_.push_back(read);
  return {};
}

void FaultFabric::fail(fabric::OutboundId outbound, std::uint64_t context,
                       fabric::FabricEvent::Kind kind) {
  fabric::FabricEvent failed;
  failed.kind = kind;
  failed.outbound = outbound;
  failed.context = context;
  failed.error = "held back by BATON_FAULT until the connection ended";
  failed.over = true;  // it never reached the fabric
  made_up_.push_back(std::move(failed));
}

void FaultFabric::fail_held(fabric::OutboundId outbound) {
  std::erase_if(held_, [&](const fabric::Write& write) {
    if (write.to != outbound) return false;
    fail(outbound, write.context, fabric::FabricEvent::Kind::kWriteFailed);
    return true;
  });
  std::erase_if(held_reads_, [&](const fabric::Read& read) {
    if (read.from != outbound) return false;
    fail(outbound, read.context, fabric::FabricEvent::Kind::kReadFailed);
    return true;
  });
}

void FaultFabric::release_held() {
  if (!holds()) return;
  if (must_hold(fault_.kind)) {
    // The owner thread asks again and again: a test's two cores have better to do.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return;
  }
  while (!held_.empty()) {
    const auto posted = real_->post(held_.front());
    if (!posted && posted.error().code == Errc::kResourceExhausted) return;
    if (!posted) return fail_held(held_.front().to);
    held_.pop_front();
  }
  while (!held_reads_.empty()) {
    const auto posted = real_->post_read(held_reads_.front());
    if (!posted && posted.error().code == Errc::kResourceExhausted) return;
    if (!posted) return fail_held(held_reads_.front().from);
    held_reads_.pop_front();
  }
}

std::size_t FaultFabric::take_made_up(std::span<fabric::FabricEvent> out) {
  std::size_t count = 0;
  while (count < out.size() && !made_up_.empty()) {
    out[count++] = std::move(made_up_.front());
    made_up_.pop_front();
  }
  return count;
}

// An outbound's end is its last event: what is held for it fails before.
std::size_t FaultFabric::end_held(std::span<fabric::FabricEvent> out, std::size_t begin,
                                  std::size_t end) {
  std::size_t kept = begin;
  for (std::size_t i = begin; i < end; ++i) {
    const bool closed = out[i].kind == fabric::FabricEvent::Kind::kOutboundClosed;
    const std::size_t before = made_up_.size();
    if (closed) fail_held(out[i].outbound);
    if (made_up_.size() > before) {
      made_up_.push_back(std::move(out[i]));
    } else {
      if (kept != i) out[kept] = std::move(out[i]);
      ++kept;
    }
  }
  return kept;
}

std::size_t FaultFabric::poll(std::span<fabric::FabricEvent> out) {
  release_held();
  std::size_t count = take_made_up(out);
  const std::size_t first_real = count;
  count += real_->poll(out.subspan(count));
  if (holds()) count = end_held(out, first_real, count);
  if (inverted_ == nullptr) return count;
  for (const fabric::FabricEvent& event : out.first(count)) {
    const bool completion = event.kind == fabric::FabricEvent::Kind::kWriteDone ||
                            event.kind == fabric::FabricEvent::Kind::kWriteFailed;
    if (!completion || event.context != inverted_context_) continue;
    invert(inverted_);
    inverted_ = nullptr;
    break;
  }
  return count;
}

}  // namespace baton
