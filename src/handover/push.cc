// The writes: stretches of ready blocks become merged runs, runs become posted writes, and the last
// completion ends the transfer. Nothing is allocated for a block, and every write is checked
// against its registration just before it is posted [I1] [I6].
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "handover/prefill_impl.h"
#include "handover/share.h"

namespace baton::handover {
namespace {

constexpr std::uint64_t kHashBytesPerTurn = 256
                                            << 10;  // then the driver looks at its sockets again

std::int64_t ticks(Time now) {
  return now.time_since_epoch().count();
}

}  // namespace

bool PrefillSide::Impl::work(Time now) {
  if (stopping) return false;
  std::uint64_t hash_budget = config.verify_blocks ? kHashBytesPerTurn : 1;
  progress = false;
  const bool posted = runnable.run([&](std::uint32_t push) {
    if (pushes[push].phase != Phase::kStanding) return Step::kStarved;
    return pull() ? lend(push, hash_budget, now) : step(push, hash_budget, now);
  });
  return (posted || progress) && !runnable.empty();
}

// One write, or the reason why there is none: kBlocked waits for room, kStarved for an event.
PrefillSide::Impl::Step PrefillSide::Impl::step(std::uint32_t push, std::uint64_t& hash_budget,
                                                Time now) {
  Push& p = pushes[push];
  const Transfer& t = transfers[p.transfer];
  if (!t.has_pieces) return Step::kStarved;
  if (p.blocks > 0 && peers[p.peer].way.state != Way::State::kConnected) return Step::kStarved;
  if (!p.checked || t.last) {
    if (!fits_pieces(push, now)) return Step::kStarved;
    p.checked = true;
  }
  for (;;) {
    if (p.stretch_begin < p.stretch_end) {
      if (!hash_stretch(push, hash_budget)) return Step::kBlocked;
      if (p.held || [&] {
            layout::Run run;
            const bool more = p.cursor.next(lists_of(p), run);
            if (more) p.held = run;
            return more;
          }()) {
        return post_run(push, now);
      }
      p.stretch_begin = p.stretch_end;
    }
    if (!next_stretch(push)) return finish(push, now);
  }
}

// The blocks that became ready since the last stretch, as far as they are wanted.
bool PrefillSide::Impl::next_stretch(std::uint32_t push) {
  Push& p = pushes[push];
  const Transfer& t = transfers[p.transfer];
  const std::uint32_t block_size = config.geometry.block_size;
  const layout::BlockSpan wanted = layout::blocks_of(p.range, block_size);
  const std::uint32_t frontier =
      t.last ? layout::blocks_of(t.ready, block_size).end : t.ready.end / block_size;
  const std::uint32_t end = std::min(wanted.end, frontier);
  if (p.next_block >= end) return false;
  p.stretch_begin = p.next_block;
  p.stretch_end = end;
  p.next_block = end;
  p.cursor = layout::RunCursor(peers[p.peer].plan, config.write_bytes_max);
  return true;
}

layout::BlockLists PrefillSide::Impl::lists_of(const Push& p) const {
  const Transfer& t = transfers[p.transfer];
  const std::uint32_t block_size = config.geometry.block_size;
  const std::uint32_t count = p.stretch_end - p.stretch_begin;
  const std::uint32_t local_at = p.stretch_begin - t.ready.begin / block_size;
  const std::uint32_t remote_at = p.stretch_begin - p.range.begin / block_size;
  layout::BlockLists lists;
  for (std::size_t g = 0; g < t.blocks.size(); ++g) {
    lists.local[g] = std::span(t.blocks[g]).subspan(local_at, count);
    lists.remote[g] = std::span(p.remote[g]).subspan(remote_at, count);
  }
  return lists;
}

// Verification: each block is hashed before a byte of it is written. False: no budget left in this
// turn.
bool PrefillSide::Impl::hash_stretch(std::uint32_t push, std::uint64_t& hash_budget) {
  Push& p = pushes[push];
  const Peer& peer = peers[p.peer];
  if (!peer.verify) return true;
  const layout::BlockLists lists = lists_of(p);
  const std::size_t before = p.stretch_begin - p.range.begin / config.geometry.block_size;
  for (std::uint16_t g = 0; g < config.geometry.num_groups; ++g) {
    auto& hashes = p.hashes[g];
    hashes.reserve(p.remote[g].size());
    while (hashes.size() < before + lists.local[g].size()) {
      if (hash_budget == 0) return false;
      hashes.push_back(port.hash_block(g, lists.local[g][hashes.size() - before]));
      hash_budget -=
          std::min(hash_budget, std::max<std::uint64_t>(1, peer.plan.bytes_per_block(g)));
      progress = true;
    }
  }
  return true;
}

bool PrefillSide::Impl::room_for(const Push& p) const {
  const std::uint32_t most = config.writes_in_flight_max;
  const std::uint32_t share = share_of_peer(most, peers_connected <= 1);
  return in_flight < most && peers[p.peer].way.in_flight < share;
}

void PrefillSide::Impl::check_standing(const Push& p) const {
  BATON_CHECK(p.phase == Phase::kStanding, "[I1] the registration no longer stands");
  BATON_CHECK(
      peers[p.peer].way.state == Way::State::kConnected && p.session == peers[p.peer].session,
      "[I6] the peer's session is another");
  BATON_CHECK(peers[p.peer].ended->find(p.key.epoch) == nullptr, "[I1] the epoch is over");
  const std::uint32_t standing = transfers[p.transfer].push;
  BATON_CHECK(standing != kNone && &pushes[standing] == &p, "[I1] another attempt stands");
}

void PrefillSide::Impl::note_posted(std::uint32_t index, Time now) {
  Peer& peer = peers[index];
  if (peer.way.in_flight++ > 0) return;
  peer.way.moved = now;
  peer_timers.set(index, peer_deadline(peer));
}

Status PrefillSide::Impl::post(std::uint32_t push, WriteOp op, Time now) {
  Push& p = pushes[push];
  check_standing(p);
  op.to = peers[p.peer].way.outbound;
  op.context = (std::uint64_t{p.generation} << 32) | push;
  if (Status status = port.post(op); !status) return status;
  ++p.in_flight;
  ++p.writes;
  if (op.immediate) ++p.immediates;
  p.bytes += op.length;
  Transfer& t = transfers[p.transfer];
  ++t.in_flight;
  note_posted(p.peer, now);
  ++in_flight;
  metrics.writes_posted.add();
  // The last one says that the data have come: it is posted after them, and carries none.
  if (op.length > 0 || p.writes == 1) t.times.last_write = ticks(now);
  if (p.writes == 1) {
    t.times.first_write = ticks(now);
    metrics.match_seconds.observe(
        seconds_between(std::max(t.times.ready, t.times.registered), t.times.first_write));
    metrics.register_wait_seconds.observe(
        std::max(0.0, seconds_between(t.times.ready, t.times.registered)));
  }
  return {};
}

PrefillSide::Impl::Step PrefillSide::Impl::post_run(std::uint32_t push, Time now) {
  Push& p = pushes[push];
  if (!config.delivery_complete && p.immediates - p.counted >= p.credits) return Step::kStarved;
  if (!room_for(p)) return Step::kBlocked;
  const layout::Run& run = *p.held;
  WriteOp op;
  op.local_region = run.local_region;
  op.local_offset = run.local_offset;
  op.remote_region = run.remote_region;
  op.remote_offset = run.remote_offset;
  op.length = run.length;
  if (!config.delivery_complete) op.immediate = p.key.slot.to_immediate();
  const Status status = post(push, op, now);
  if (!status && status.error().code == Errc::kResourceExhausted) return Step::kBlocked;
  if (!status) {
    end_push(push, Outcome::kFailed, Cause::kFabric, status.error().message, now);
    return Step::kStarved;
  }
  const std::uint64_t block_bytes = config.geometry.regions[run.local_region].block_bytes;
  if (run.length > block_bytes) metrics.runs_merged.add(run.length / block_bytes - 1);
  if (!layout::continues(p.last, run)) ++p.runs;
  p.last = run;
  p.held.reset();
  return Step::kPosted;
}

// Everything that is ready is posted. After the last piece comes the final message; where
// completion means delivery, one immediate follows all data.
PrefillSide::Impl::Step PrefillSide::Impl::finish(std::uint32_t push, Time now) {
  Push& p = pushes[push];
  const Transfer& t = transfers[p.transfer];
  if (!t.last || p.final_sent) return Step::kStarved;
  if (config.delivery_complete && p.blocks > 0) {
    if (p.in_flight > 0) return Step::kStarved;
    if (!room_for(p)) return Step::kBlocked;
    WriteOp op;
    op.immediate = p.key.slot.to_immediate();
    const Status status = post(push, op, now);
    if (!status && status.error().code == Errc::kResourceExhausted) return Step::kBlocked;
    if (!status) {
      end_push(push, Outcome::kFailed, Cause::kFabric, status.error().message, now);
      return Step::kStarved;
    }
  }
  BATON_CHECK(p.bytes == p.bytes_planned, "[I8] {} bytes were posted, {} are needed", p.bytes,
              p.bytes_planned);
  send_final(push, now);
  progress = true;
  if (p.in_flight == 0) done(push, now);
  return Step::kStarved;
}

void PrefillSide::Impl::send_final(std::uint32_t push, Time now) {
  Push& p = pushes[push];
  p.final_sent = true;
  EndRecord record = record_of(p);
  record.done = true;
  answer_record(p.peer, record, now);
}

// ---- completions ----

std::uint32_t PrefillSide::Impl::write_over(std::uint64_t context, Time now) {
  const auto push = static_cast<std::uint32_t>(context);
  BATON_CHECK(push < pushes.size());
  Push& p = pushes[push];
  BATON_CHECK(p.phase != Phase::kFree && p.generation == context >> 32 && p.in_flight > 0,
              "[I2] a completion of a registration that is gone");
  --p.in_flight;
  --transfers[p.transfer].in_flight;
  --peers[p.peer].way.in_flight;
  peers[p.peer].way.moved = now;
  --in_flight;
  return push;
}

void PrefillSide::Impl::on_write_done(std::uint64_t context, Time now) {
  after_write(write_over(context, now), now);
}

void PrefillSide::Impl::on_write_failed(std::uint64_t context, std::string_view error, Time now,
                                        bool over) {
  const std::uint32_t push = write_over(context, now);
  Push& p = pushes[push];
  if (!over && !config.failed_writes_final) p.unclean = true;  // it may still land [I1]
  if (p.phase == Phase::kStanding) {
    return end_push(push, Outcome::kFailed, Cause::kFabric,
                    fmt::format("a write failed: {}", error), now);
  }
  after_write(push, now);
}

void PrefillSide::Impl::after_write(std::uint32_t push, Time now) {
  Push& p = pushes[push];
  Transfer& t = transfers[p.transfer];
  t.times.last_byte = ticks(now);
  if (p.phase == Phase::kStanding) {
    if (p.final_sent && p.in_flight == 0) return done(push, now);
    return runnable.add(push);
  }
  const std::uint32_t transfer = p.transfer;
  if (p.in_flight == 0) drained(push, now);
  if (t.ending && t.in_flight == 0 && !stopping) finish_transfer(transfer, now);
}

void PrefillSide::Impl::done(std::uint32_t push, Time now) {
  Push& p = pushes[push];
  const std::uint32_t transfer = p.transfer;
  Transfer& t = transfers[transfer];
  BATON_CHECK(p.phase == Phase::kStanding && p.in_flight == 0 && p.final_sent, "[I3]");
  EndRecord record = record_of(p);
  record.done = true;
  peers[p.peer].unclean |= !config.delivery_complete;
  peers[p.peer].ended->add(std::move(record));
  if (!pull()) {
    metrics.bytes_written.add(p.bytes);
    metrics.blocks_written.add(p.blocks);
  }
  if (t.times.first_write != 0) {
    metrics.write_seconds.observe(seconds_between(t.times.first_write, ticks(now)));
  }
  t.bytes = p.bytes;
  t.writes = p.writes;
  t.runs = p.runs;
  t.push = kNone;
  t.peer_name = peers[p.peer].id.engine_id;
  t.ending = true;
  t.outcome = Outcome::kDone;
  t.cause = Cause::kNone;
  free_push(push);
  if (t.in_flight == 0) return finish_transfer(transfer, now);
  set_transfer_timer(transfer);
}

}  // namespace baton::handover
