// Reads of the fake fabric: a piece is taken at the source at one moment and lands at the reader at
// another.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "fabric/access.h"
#include "fabric/events.h"
#include "fabric/sim/sim_core.h"

namespace baton::fabric::sim {

Status Network::Core::post_read(EndpointKey key, const Read& read) {
  if (!options_.reads) return fail(Errc::kUnsupported, "this fabric has no reads");
  const Result<OutboundState*> found = find_open(key, Access::kRead, as_write(read));
  if (!found) return tl::unexpected(found.error());
  EndpointState& endpoint = endpoints_.at(key);
  OutboundState& outbound = **found;
  ++endpoint.in_flight;
  ++outbound.in_flight;
  ++stats_.reads_posted;
  const ReadKey read_key = next_read_++;
  ReadState& state = reads_[read_key];
  state.from = key;
  state.source = outbound.target;
  state.inbound = outbound.inbound;
  state.way_there = {endpoint.self, outbound.peer};
  state.way_back = {outbound.peer, endpoint.self};
  state.read = read;
  state.taken.resize(read.length);
  if (draw_failure(reads_to_fail_, state.way_there)) make_fail(state);
  schedule_pieces(read_key, state);
  if (state.fails) schedule_completion(read_key, state);
  return {};
}

void Network::Core::make_fail(ReadState& read) {
  read.fails = true;
  read.over = options_.failed_writes_final || rng_.chance(1, 2);
}

void Network::Core::schedule_pieces(ReadKey key, ReadState& read) {
  const std::uint64_t length = read.read.length;
  const std::uint64_t most = std::min<std::uint64_t>(std::max(options_.pieces_max, 1U), length);
  const std::uint64_t pieces = 1 + rng_.below(most);
  read.pieces_total = static_cast<std::uint32_t>(pieces);
  read.pieces_to_land = read.pieces_total;
  std::uint64_t offset = 0;
  for (std::uint64_t i = 0; i < pieces; ++i) {
    const std::uint64_t end = length * (i + 1) / pieces;
    // A completion in error says nothing about the bytes: each piece is taken or not.
    if (!read.fails || rng_.chance(1, 2)) {
      ++read.actions;
      schedule(options_.landing, {.kind = Action::Kind::kTake,
                                  .read = key,
                                  .piece = static_cast<std::uint32_t>(i),
                                  .offset = offset,
                                  .length = end - offset,
                                  .link = read.way_there});
    }
    offset = end;
  }
}

void Network::Core::schedule_completion(ReadKey key, ReadState& read) {
  read.completion_scheduled = true;
  ++read.actions;
  // Of no link: what the reader has is told even while the way there is held.
  schedule(options_.completion, {.kind = Action::Kind::kCompleteRead, .read = key, .link = {}});
}

void Network::Core::act_take(const Action& action) {
  ReadState& read = reads_.at(action.read);
  if (is_over(read)) return release(action.read, read);
  const EndpointState& source = endpoints_.at(read.source);
  const std::byte* bytes = source.bases[read.read.remote_region] + read.read.remote_offset;
  std::memcpy(read.taken.data() + action.offset, bytes + action.offset, action.length);
  ++read.actions;
  Action landing = action;
  landing.kind = Action::Kind::kLandRead;
  landing.link = read.way_back;
  schedule(options_.landing, std::move(landing));
  release(action.read, read);
}

void Network::Core::act_land_read(const Action& action) {
  ReadState& read = reads_.at(action.read);
  if (is_over(read)) return release(action.read, read);
  std::byte* to = endpoints_.at(read.from).bases[read.read.local_region] + read.read.local_offset;
  std::memcpy(to + action.offset, read.taken.data() + action.offset, action.length);
  stats_.bytes_landed += action.length;
  if (--read.pieces_to_land == 0 && !read.completion_scheduled) {
    schedule_completion(action.read, read);
  }
  release(action.read, read);
}

void Network::Core::act_complete_read(const Action& action) {
  ReadState& read = reads_.at(action.read);
  read.completed = true;
  const OutboundId id = read.read.from;
  OutboundState& outbound = endpoints_.at(read.from).outbounds.at(id.value);
  --endpoints_.at(read.from).in_flight;
  --outbound.in_flight;
  FabricEvent event = done_event(Access::kRead, id, read.read.context);
  if (read.fails) {
    event = failed_event(Access::kRead, id, read.read.context,
                         outbound.error.empty() ? "the read failed" : outbound.error);
    event.over = read.over;
  }
  push(read.from, std::move(event));
  close_if_idle(read.from, id.value, outbound);
  release(action.read, read);
}

void Network::Core::release(ReadKey key, ReadState& read) {
  BATON_CHECK(read.actions > 0);
  if (--read.actions == 0 && read.completed) reads_.erase(key);
}

// Fails what an outbound has posted and not got: what was taken may land until it is over.
void Network::Core::break_reads(EndpointKey key, std::uint32_t outbound) {
  for (auto& [read_key, read] : reads_) {
    if (read.from != key || read.read.from.value != outbound) continue;
    if (read.completed || read.completion_scheduled) continue;
    make_fail(read);
    schedule_completion(read_key, read);
  }
}

std::string Network::Core::describe_read(const Action& action) const {
  const ReadState& read = reads_.at(action.read);
  const std::string what =
      fmt::format("of read {} by {} of {}", action.read, read.way_there.first.to_string(),
                  read.way_there.second.to_string());
  if (action.kind == Action::Kind::kCompleteRead) {
    return fmt::format("completion {}{}", what, read.fails ? " in error" : "");
  }
  return fmt::format("{} {}/{} {}", action.kind == Action::Kind::kTake ? "take" : "land",
                     action.piece + 1, read.pieces_total, what);
}

}  // namespace baton::fabric::sim
