// Pull, P's half: which memory D may read, and whether what it read stood still. D reads on its
// own; P learns of it by Register, first when D begins and last when it has read everything. Blocks
// that were held under the lease from their announcement until then are what D has read; otherwise
// D is told that it is over and discards [I5].
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "handover/prefill_impl.h"

namespace baton::handover {

Status PrefillSide::Impl::open_source(std::uint32_t index) {
  Peer& peer = peers[index];
  if (peer.source) return {};
  Result<Port::InboundOffer> opened = port.open_source(peer.id);
  if (!opened) return tl::unexpected(opened.error());
  peer.source = opened->id;
  peer.source_offer = std::move(opened->offer);
  return {};
}

void PrefillSide::Impl::send_source(std::uint32_t index, Time now) {
  if (peers[index].source) send(index, wire::Offer{peers[index].source_offer}, now);
}

// Blocks are announced when they are finished, and D reads at once: whoever comes earlier was told
// by somebody else, and may have read what was still to be computed [I2]. And whoever was told of
// other blocks under the same id, by an earlier request, read those [I6].
std::string PrefillSide::Impl::lending_fault(std::uint32_t peer,
                                             const wire::Register& message) const {
  const auto found = transfer_of.find(message.transfer);
  if (!found || !transfers[*found].known) return "no finished blocks of this transfer are here";
  const Transfer& t = transfers[*found];
  if (!t.last) return "the blocks of this transfer are not finished";
  const bool named = peers[peer].version >= wire::kAnnouncementSince;
  if (named && message.announcement != t.announcement) {
    return fmt::format("announcement: ours is {:016x}, theirs is {:016x}", t.announcement,
                       message.announcement);
  }
  return {};
}

// D names the blocks as they were announced to it. Were it told wrong ones, it has read another
// request's.
std::string PrefillSide::Impl::source_fault(const Push& p) const {
  const Transfer& t = transfers[p.transfer];
  const std::uint32_t block_size = config.geometry.block_size;
  const std::size_t begin = (p.range.begin - t.ready.begin) / block_size;
  for (std::size_t g = 0; g < p.remote.size(); ++g) {
    for (std::size_t i = 0; i < p.remote[g].size(); ++i) {
      if (t.blocks[g][begin + i] == p.remote[g][i]) continue;
      return fmt::format("block_ids: block {} of group {} is {} here, theirs is {}", begin + i, g,
                         t.blocks[g][begin + i], p.remote[g][i]);
    }
  }
  return {};
}

// A registration whose blocks are D's to read: checked, hashed where both verify, and over when D
// has read everything.
PrefillSide::Impl::Step PrefillSide::Impl::lend(std::uint32_t push, std::uint64_t& hash_budget,
                                                Time now) {
  Push& p = pushes[push];
  Transfer& t = transfers[p.transfer];
  BATON_CHECK(t.last, "[I2] blocks that are not finished were lent");
  if (!p.checked) {
    if (!fits_pieces(push, now)) return Step::kStarved;
    if (std::string fault = source_fault(p); !fault.empty()) {
      metrics.refused_messages.add();
      stop(push, Cause::kRefused, std::move(fault), now);
      return Step::kStarved;
    }
    p.checked = true;
    next_stretch(push);  // all of it
    send_state(push, now);
  }
  if (p.stretch_begin < p.stretch_end && !hash_stretch(push, hash_budget)) return Step::kBlocked;
  if (!p.taken) return Step::kStarved;
  BATON_CHECK(!t.ending && t.lease != kNever, "[I5] the blocks are not held");
  t.times.last_byte = now.time_since_epoch().count();
  p.bytes = p.bytes_planned;
  send_final(push, now);
  progress = true;
  done(push, now);
  return Step::kStarved;
}

}  // namespace baton::handover
