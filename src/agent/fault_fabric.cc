#include "agent/fault_fabric.h"

#include <fmt/format.h>

#include <charconv>

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
  } else {
    return fail(
        Errc::kInvalidArgument,
        fmt::format("BATON_FAULT is '{}', known are flip_byte[:n] and drop_write[:n]", text));
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
  log::warning("BATON_FAULT is set: write {} will be broken on purpose", fault.write_number);
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

Status FaultFabric::post(const fabric::Write& write) {
  const bool broken = write.length > 0 && data_writes_ + 1 == fault_.write_number;
  if (!broken) {
    auto posted = real_->post(write);
    if (posted && write.length > 0) ++data_writes_;
    return posted;
  }
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

std::size_t FaultFabric::poll(std::span<fabric::FabricEvent> out) {
  std::size_t count = 0;
  while (count < out.size() && !made_up_.empty()) {
    out[count++] = std::move(made_up_.front());
    made_up_.pop_front();
  }
  count += real_->poll(out.subspan(count));
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
