// More decode than prefill processes and the reverse: each pair has its own link, session and
// quotas; processes come and go while others are served.
#include <gmock/gmock.h>

#include <map>
#include <memory>

#include "handover/testing/pair.h"

namespace baton::handover::testing {
namespace {

using std::chrono::milliseconds;

class ClusterTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kBlocks = 64;

  struct Process {
    Config config;
    RecordingPort port;
    AgentMetrics metrics;
    std::unique_ptr<DecodeSide> d;
    std::unique_ptr<PrefillSide> p;
    std::uint32_t connected = 0;
    std::map<TransferId, Event> ends;
    std::uint32_t next_block = 0;
    void stop(Time now) {
      if (d) d->shutdown(now);
      if (p) p->shutdown(now);
    }
  };

  ClusterTest() : pool_(layout::make_pool(2, kBlocks)) {}

  std::size_t add(bool prefill, std::string name, std::uint64_t incarnation = 1) {
    auto one = std::make_unique<Process>();
    one->config.id = {std::move(name), incarnation};
    one->config.role = prefill ? Role::kProducer : Role::kConsumer;
    one->config.geometry = pool_.geometry;
    one->config.transfers_max = 32;
    one->config.peers_max = 8;
    one->config.quarantine_blocks_max = 3;
    one->port.next_link = 1000 * (all_.size() + 1);  // tells whose a link is
    one->port.name = static_cast<std::byte>(all_.size());
    if (prefill) {
      one->p = std::make_unique<PrefillSide>(one->config, one->port, one->metrics);
    } else {
      one->d = std::make_unique<DecodeSide>(one->config, one->port, one->metrics);
    }
    all_.push_back(std::move(one));
    return all_.size() - 1;
  }
  Process& at(std::size_t i) { return *all_[i]; }

  // The youngest of that name, if it has not ended.
  Process* prefill_named(const std::string& name) {
    for (std::size_t i = all_.size(); i-- > 0;) {
      if (all_[i]->config.id.engine_id == name) return all_[i]->p ? all_[i].get() : nullptr;
    }
    return nullptr;
  }

  void decode(std::size_t d, std::size_t p, TransferId id, std::uint32_t attempt = 1) {
    Process& from = at(d);
    Registration r;
    r.transfer = id;
    r.attempt = attempt;
    r.peer = {"h", static_cast<std::uint16_t>(p + 1), at(p).config.id.engine_id,
              at(p).config.id.incarnation};
    r.range = {0, 8};
    r.block_ids = {{from.next_block, from.next_block + 1}};
    from.next_block += 2;
    r.prompt_tokens = 8;
    from.d->register_blocks(std::move(r), now);
  }
  void prefill(std::size_t p, TransferId id) {
    ReadyPiece piece;
    piece.transfer = id;
    piece.range = {0, 8};
    piece.block_ids = {{at(p).next_block, at(p).next_block + 1}};
    at(p).next_block += 2;
    at(p).p->ready(std::move(piece), now);
  }

  // Everything that waits anywhere, until all is quiet.
  void settle() {
    for (bool more = true; more;) {
      more = false;
      for (auto& one : all_) more |= turn(*one);
    }
  }
  bool turn(Process& one) {
    bool more = false;
    for (; !one.port.dialled.empty(); more = true) {
      const LinkId link = one.port.dialled.front();
      one.port.dialled.erase(one.port.dialled.begin());
      // Whom D means stands in the Hello; the address is the place of the process here.
      one.d->on_link_up(link, now);
    }
    for (; !one.port.out.empty(); more = true) {
      const auto sent = std::move(one.port.out.front());
      one.port.out.pop_front();
      deliver(one, sent);
    }
    if (one.p && one.port.outbounds != one.connected) {
      while (one.connected != one.port.outbounds)
        one.p->on_connected(Outbound{++one.connected}, now);
      more = true;
    }
    while (one.p && one.p->work(now)) {
    }
    while (!one.port.writes.empty()) {
      more = true;
      const WriteOp op = one.port.writes.front();
      one.port.writes.pop_front();
      if (op.immediate) immediate(one, op);
      one.p->on_write_done(op.context, now);
    }
    for (; !one.port.events.empty(); one.port.events.pop_front()) {
      const Event& event = one.port.events.front();
      if (event.kind != Event::Kind::kEnded) continue;
      EXPECT_TRUE(one.ends.emplace(event.transfer, event).second) << "[I3]";
    }
    return more;
  }
  void deliver(Process& from, const RecordingPort::Sent& sent) {
    if (from.p) {
      Process& to = *all_[sent.link / 1000 - 1];
      return to.d->on_frame(sent.link, sent.frame(), now);
    }
    if (sent.type == wire::MessageType::kHello) {
      const auto hello = std::get<wire::Hello>(*wire::decode(sent.frame()));
      Process* to = prefill_named(hello.expected.engine_id);
      if (to == nullptr) return from.d->on_link_down(sent.link, "refused", now);
      to_[sent.link] = to;
      to->p->on_link_accepted(sent.link, now);
    }
    if (to_.contains(sent.link) && to_[sent.link]->p)
      to_[sent.link]->p->on_frame(sent.link, sent.frame(), now);
  }
  // An offer says whose it is, and which of its inbounds.
  void immediate(const Process& from, const WriteOp& op) {
    const auto& offer = from.port.offers.at(static_cast<std::uint32_t>(op.to) - 1);
    at(std::to_integer<std::size_t>(offer[0]))
        .d->on_immediate(Inbound{std::to_integer<std::uint32_t>(offer[1])}, *op.immediate, now);
  }
  void pass(milliseconds time) {
    for (const Time end = now + time; now < end;) {
      now = std::min(end, now + milliseconds(50));
      for (auto& one : all_) {
        if (one->d) one->d->on_time(now);
        if (one->p) one->p->on_time(now);
      }
      settle();
    }
  }

  layout::TestPool pool_;
  Time now{std::chrono::seconds(100)};
  std::vector<std::unique_ptr<Process>> all_;
  std::map<LinkId, Process*> to_;
};

TEST_F(ClusterTest, MoreDThanPAndTheReverse) {
  for (const auto& [prefills, decodes] : {std::pair<std::size_t, std::size_t>{1, 4}, {4, 1}}) {
    const std::size_t first = all_.size();
    for (std::size_t i = 0; i < prefills; ++i) add(true, "p" + std::to_string(first + i));
    for (std::size_t i = 0; i < decodes; ++i) add(false, "d" + std::to_string(first + i));
    std::uint64_t number = 0;
    for (int round = 0; round < 4; ++round) {
      for (std::size_t p = first; p < first + prefills; ++p) {
        for (std::size_t d = first + prefills; d < all_.size(); ++d) {
          const TransferId id{first + 1, ++number};
          if (number % 2 == 0) prefill(p, id);
          decode(d, p, id);
          settle();
          if (number % 2 == 1) prefill(p, id);
        }
      }
    }
    settle();
    std::size_t d_ends = 0, p_ends = 0;
    for (std::size_t i = first; i < all_.size(); ++i) {
      for (const auto& [id, event] : at(i).ends) EXPECT_EQ(event.outcome, Outcome::kDone);
      (at(i).d ? d_ends : p_ends) += at(i).ends.size();
      EXPECT_TRUE(at(i).d ? at(i).d->idle() : at(i).p->idle());
    }
    EXPECT_EQ(d_ends, number);
    EXPECT_EQ(p_ends, number);
    for (std::size_t i = first; i < all_.size(); ++i) {  // one connection a pair
      if (at(i).d) {
        EXPECT_EQ(at(i).metrics.peers_connected.value(), std::int64_t(prefills));
      }
    }
  }
}

TEST_F(ClusterTest, InstancesJoinAndLeaveWhileOthersAreServed) {
  const std::size_t d = add(false, "d");
  const std::size_t p1 = add(true, "p1");
  decode(d, p1, {1, 1});
  prefill(p1, {1, 1});
  settle();
  EXPECT_EQ(at(d).ends.at({1, 1}).outcome, Outcome::kDone);
  const std::size_t p2 = add(true, "p2");  // joins
  decode(d, p2, {1, 2});
  decode(d, p1, {1, 3});
  settle();
  at(p1).stop(now);  // leaves with a registration open
  settle();
  at(p1).p.reset();
  EXPECT_EQ(at(d).ends.at({1, 3}).cause, Cause::kShutdown);
  prefill(p2, {1, 2});
  settle();
  EXPECT_EQ(at(d).ends.at({1, 2}).outcome, Outcome::kDone);
  const std::size_t again = add(true, "p1", 2);  // back under its name, another incarnation
  decode(d, again, {1, 4});
  prefill(again, {1, 4});
  settle();
  EXPECT_EQ(at(d).ends.at({1, 4}).outcome, Outcome::kDone);
  const std::size_t d2 = add(false, "d2");
  decode(d2, p2, {1, 5});
  settle();
  at(d2).stop(now);
  settle();
  decode(d, p2, {1, 6});
  prefill(p2, {1, 6});
  settle();
  EXPECT_EQ(at(d).ends.at({1, 6}).outcome, Outcome::kDone);
}

// One P that never says it has drained costs D its own grants and nobody else's.
TEST_F(ClusterTest, TheQuarantineOfOnePeerHoldsNoOtherBack) {
  const std::size_t d = add(false, "d");
  const std::size_t p1 = add(true, "p1");
  const std::size_t p2 = add(true, "p2");
  for (std::uint64_t i = 1; i <= 2; ++i) decode(d, p1, {2, i});
  decode(d, p2, {3, 1});
  settle();
  // Nothing reaches p1 any more; the link looks alive until its time-out.
  std::erase_if(to_, [&](const auto& entry) { return entry.second == &at(p1); });
  for (std::uint64_t i = 1; i <= 2; ++i) at(d).d->cancel({2, i}, now);
  settle();
  EXPECT_EQ(at(d).d->quarantined_blocks(), 4U);
  EXPECT_EQ(at(d).metrics.blocks_quarantined_worst_peer.value(), 4);
  decode(d, p1, {2, 3});
  decode(d, p2, {3, 2});
  prefill(p2, {3, 1});
  prefill(p2, {3, 2});
  settle();
  EXPECT_EQ(at(d).ends.at({3, 1}).outcome, Outcome::kDone);
  EXPECT_EQ(at(d).ends.at({3, 2}).outcome, Outcome::kDone);
  EXPECT_FALSE(at(d).ends.contains({2, 3}));
  pass(milliseconds(5000));
  EXPECT_EQ(at(d).ends.at({2, 3}).outcome, Outcome::kFailed);
  EXPECT_EQ(at(d).d->quarantined_blocks(), 4U);  // no time alone gives them back [I1]
  decode(d, p2, {3, 3});
  prefill(p2, {3, 3});
  settle();
  EXPECT_EQ(at(d).ends.at({3, 3}).outcome, Outcome::kDone);
}

}  // namespace
}  // namespace baton::handover::testing
