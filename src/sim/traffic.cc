#include "sim/traffic.h"

#include <fmt/format.h>

#include <algorithm>

namespace baton::sim {
namespace {

using handover::LegAction;
using handover::Legs;
using std::chrono::milliseconds;

constexpr Duration kRetryAdmission = milliseconds(3);
constexpr handover::Leg kPrefillLeg = handover::Leg::kPrefill;
constexpr handover::Leg kDecodeLeg = handover::Leg::kDecode;

}  // namespace

Traffic::Traffic(World& world) : world_(world) {
  world_.engines = this;
}

bool Traffic::here(const Leg& leg) const {
  const Instance& inst = world_.instance(leg.instance);
  return inst.alive && inst.lives == leg.life;
}

template <typename F>
void Traffic::each_rank(const Leg& leg, F&& call) {
  if (!here(leg)) return;
  for (const std::uint32_t number : world_.instance(leg.instance).ranks) {
    if (Process* process = world_.alive(number)) call(*process);
  }
}

// After the calls of all ranks: what comes of a turn may change the request.
void Traffic::turn(const Leg& leg) {
  each_rank(leg, [](Process& p) {
    if (!p.stalled) p.turn();
  });
}

// ---- the router ----

void Traffic::start(const Plan& plan, std::uint32_t router) {
  auto owned = std::make_unique<Request>();
  Request& r = *owned;
  requests_[plan.number] = std::move(owned);
  ++open_;
  r.plan = plan;
  r.router = router;
  for (std::size_t part = 0; part < plan.prompts.size(); ++part) {
    r.ids.push_back({world_.choices.pick(1U << 30) + 1, plan.number * kParts + part});
  }
  if (plan.prompts.size() > 1) world_.journal.mark(Mark::sub_requests);
  Legs::Options options;
  options.first_token_from_prefill = plan.first_token_from_prefill;
  options.decode_after_prefill = pull();
  options.deadline = world_.now() + plan.request_timeout;
  options.idle_timeout = plan.request_timeout;
  r.legs.emplace(options, world_.now());
  r.prefill.instance = plan.prefill;
  r.prefill.life = world_.instance(plan.prefill).lives;
  r.decode.instance = plan.decode;
  r.decode.life = world_.instance(plan.decode).lives;
  arm(r, r.legs->next_deadline());
  world_.later(http() + plan.prefill_delay, [this, &r] { start_prefill(r); });
  if (!pull()) world_.later(http() + plan.decode_delay, [this, &r] { start_decode(r); });
  if (plan.client_gone_after.count() >= 0) {
    world_.later(plan.client_gone_after, [this, &r] {
      if (r.result.finished) return;
      world_.journal.mark(Mark::client_gone);
      Legs::Actions actions;
      r.legs->on_client_gone(world_.now(), actions);
      act(r, actions);
    });
  }
}

void Traffic::arm(Request& r, Time at) {
  if (at == kNever) return;
  world_.later(std::max(Duration{}, at - world_.now()), [this, &r] {
    if (r.result.finished || r.router_dead) return;
    Legs::Actions actions;
    r.legs->on_time(world_.now(), actions);
    act(r, actions);
    if (!r.result.finished) arm(r, r.legs->next_deadline());
  });
}

void Traffic::act(Request& r, const Legs::Actions& actions) {
  for (const LegAction& action : actions) {
    if (r.result.finished) world_.fault(Checker::kRouter, "the router acted after its end");
    switch (action.kind) {
      case LegAction::Kind::kForward:
      case LegAction::Kind::kDrop:
        break;
      case LegAction::Kind::kCancelLeg:
        world_.later(http(), [this, &r, leg = action.leg] { cancel_leg(r, leg); });
        break;
      case LegAction::Kind::kPlaceDecode:
        r.legs->on_decode_started();
        world_.later(http() + r.plan.decode_delay, [this, &r] { start_decode(r); });
        break;
      case LegAction::Kind::kErrorResponse:
      case LegAction::Kind::kErrorEvent:
        r.result.status = action.status;
        break;
      case LegAction::Kind::kFinish:
        ++r.result.ends;
        r.result.finished = true;
        r.result.tokens = r.legs->tokens_forwarded();
        r.result.at = world_.now();
        --open_;
        break;
    }
  }
}

void Traffic::cancel_leg(Request& r, handover::Leg leg) {
  leg == kPrefillLeg ? cancel_prefill(r) : cancel_decode(r);
}

void Traffic::leg_failed(Request& r, handover::Leg leg, int status, const char* why) {
  world_.later(http(), [this, &r, leg, status, why] {
    if (r.result.finished || r.router_dead) return;
    Legs::Actions actions;
    r.legs->on_failed(leg, status, why, world_.now(), actions);
    act(r, actions);
  });
}

// P and D see their connections close.
void Traffic::router_dies(std::uint32_t router) {
  world_.journal.mark(Mark::router_died);
  for (auto& [number, request] : requests_) {
    Request& r = *request;
    if (r.router != router || r.result.finished) continue;
    r.router_dead = true;
    r.result.finished = true;
    r.result.ends = 1;
    --open_;
    world_.later(http(), [this, &r] { cancel_prefill(r); });
    world_.later(http(), [this, &r] { cancel_decode(r); });
  }
}

void Traffic::instance_gone(std::uint32_t instance) {
  for (auto& [number, request] : requests_) {
    Request& r = *request;
    if (r.prefill.instance == instance && here(r.prefill) && r.prefill.state != State::kOver) {
      r.prefill.state = State::kOver;
      leg_failed(r, kPrefillLeg, 0, "the connection closed");
    }
    if (r.decode.instance == instance && here(r.decode) && r.decode.state != State::kOver) {
      r.decode.state = State::kOver;
      leg_failed(r, kDecodeLeg, 0, "the connection closed");
    }
  }
}

void Traffic::drain(std::uint32_t instance) {
  Instance& inst = world_.instance(instance);
  if (!inst.alive) return;
  inst.leaving = true;
  for (const std::uint32_t number : inst.ranks) {
    Process* p = world_.alive(number);
    if (p == nullptr) continue;
    if (p->decode) p->decode->abandon(p->clock());
    if (p->prefill) p->prefill->abandon(p->clock());
    if (!p->stalled) p->turn();
  }
}

// ---- P's leg ----

void Traffic::start_prefill(Request& r) {
  if (r.prefill.state != State::kIdle) return;
  if (!here(r.prefill) || world_.instance(r.prefill.instance).leaving) {
    r.prefill.state = State::kOver;
    return leg_failed(r, kPrefillLeg, here(r.prefill) ? 503 : 0, "not here");
  }
  r.prefill.state = State::kQueued;
  each_rank(r.prefill, [&](Process& p) {
    for (std::size_t part = 0; part < r.ids.size(); ++part) {
      p.submit([id = r.ids[part], tokens = r.plan.prompts[part]](Process& self, Time now) {
        if (self.prefill) self.expect(id, tokens, now);
      });
    }
  });
  turn(r.prefill);
  admit_prefill(r);
}

void Traffic::admit_prefill(Request& r) {
  if (r.prefill.state != State::kQueued || !here(r.prefill)) return;
  const std::uint32_t size = world_.settings.block_size;
  std::uint32_t blocks = 0;
  for (const std::uint32_t tokens : r.plan.prompts) blocks += (tokens + size - 1) / size;
  bool room = true;
  each_rank(r.prefill, [&](Process& p) {
    room = room && p.pool.free_blocks() >= blocks && !p.stalled && !p.engine_stalled;
  });
  if (!room) {
    world_.journal.mark(Mark::no_room_waits);
    return world_.later(kRetryAdmission, [this, &r] { admit_prefill(r); });
  }
  each_rank(r.prefill, [&](Process& p) {
    for (std::size_t part = 0; part < r.ids.size(); ++part) {
      p.begin_prefill(r.ids[part], r.plan.prompts[part]);
    }
  });
  r.prefill.state = State::kWaiting;
  r.prefill.computed = 0;
  world_.later(r.plan.piece_time, [this, &r] { next_piece(r); });
  if (r.plan.prefill_preempt_after.count() >= 0) {
    world_.later(r.plan.prefill_preempt_after, [this, &r] { preempt_prefill(r); });
  }
}

void Traffic::next_piece(Request& r) {
  if (r.prefill.state != State::kWaiting || !here(r.prefill)) return;
  bool stalled = false;
  each_rank(r.prefill, [&](Process& p) { stalled = stalled || p.stalled || p.engine_stalled; });
  if (stalled) return world_.later(kRetryAdmission, [this, &r] { next_piece(r); });
  bool more = false;
  each_rank(r.prefill, [&](Process& p) {
    for (const TransferId id : r.ids) {
      if (!p.prefill_computing(id)) continue;
      p.compute_piece(id, r.plan.piece_tokens, TokenId{7});
      more = more || p.prefill_computing(id);
    }
  });
  turn(r.prefill);
  if (r.prefill.state != State::kWaiting) return;
  if (more) return world_.later(r.plan.piece_time, [this, &r] { next_piece(r); });
  prefill_answers(r);
}

// Pull: P tells of its finished blocks.
bool Traffic::announce(Request& r) {
  r.sources.clear();
  each_rank(r.prefill, [&](Process& p) {
    auto& of_rank = r.sources.emplace_back();
    for (const TransferId id : r.ids) {
      if (auto source = p.announced(id)) of_rank.push_back(std::move(*source));
    }
  });
  return !r.sources.empty() && std::all_of(r.sources.begin(), r.sources.end(),
                                           [&](const auto& s) { return s.size() == r.ids.size(); });
}

void Traffic::prefill_answers(Request& r) {
  if (pull() && !announce(r)) {
    // The agent's queue was full; its engine announces what the agent has.
    return world_.later(kRetryAdmission, [this, &r] {
      if (r.prefill.state == State::kWaiting && here(r.prefill)) prefill_answers(r);
    });
  }
  r.prefill.state = State::kOver;
  world_.later(http(), [this, &r] {
    if (r.result.finished || r.router_dead) return;
    Legs::Actions actions;
    r.legs->on_chunk(kPrefillLeg, 0, 1, world_.now(), actions);
    if (pull() && !r.result.finished) {
      r.legs->on_prefilled(world_.now(), actions);
      act(r, actions);
      actions.clear();
    }
    if (!r.result.finished) r.legs->on_ended(kPrefillLeg, world_.now(), actions);
    act(r, actions);
  });
}

// Before anything was handed in the blocks go and computing begins again later; afterwards the
// transfer is over, and D hears of it.
void Traffic::preempt_prefill(Request& r) {
  if (r.prefill.state != State::kWaiting || !here(r.prefill)) return;
  bool handed_in = false;
  bool writing = false;
  each_rank(r.prefill, [&](Process& p) {
    for (const TransferId id : r.ids) handed_in = handed_in || p.prefill_handed_in(id);
    writing = writing || p.prefill->writes_in_flight() > 0;
  });
  if (handed_in) {
    world_.journal.mark(writing ? Mark::preempted_while_writing : Mark::preempted_between_pieces);
    cancel_prefill(r);
    return leg_failed(r, kPrefillLeg, 503, "preempted");
  }
  world_.journal.mark(Mark::preempted_before_ready);
  each_rank(r.prefill, [&](Process& p) {
    for (const TransferId id : r.ids) {
      if (p.prefill_running(id)) p.drop_prompt(id);
    }
  });
  r.plan.prefill_preempt_after = Duration(-1);
  r.prefill.state = State::kQueued;
  world_.later(kRetryAdmission, [this, &r] { admit_prefill(r); });
}

void Traffic::cancel_prefill(Request& r) {
  r.prefill.state = State::kOver;
  each_rank(r.prefill, [&](Process& p) {
    for (const TransferId id : r.ids) p.abandon_prefill(id);
  });
  turn(r.prefill);
}

void Traffic::prefill_ended(Process& process, const Event& event) {
  if (event.transfer.low >= kForeign) return;
  Request& r = of(event.transfer);
  if (event.outcome != Outcome::kDone) maybe_reuse(process, event.transfer);
  const State state = r.prefill.state;
  if (state != State::kWaiting && state != State::kQueued) return;
  if (event.outcome == Outcome::kDone) return;
  if (process.place.instance != r.prefill.instance || !here(r.prefill)) return;
  // A transfer that is over while its prompt is still being computed: nobody waits for it.
  cancel_prefill(r);
  leg_failed(r, kPrefillLeg, 502, "its hand-over ended");
}

// Its caller starts over under the same id, and no router hears of the new blocks.
void Traffic::maybe_reuse(Process& process, TransferId id) {
  if (!world_.choices.chance(world_.weather.reused_ids)) return;
  world_.later(http(), [this, number = process.place.number, id] {
    Process* p = world_.alive(number);
    if (p == nullptr || p->stalled || p->engine_stalled || p->leaving || !p->reuse_id(id)) return;
    world_.journal.mark(Mark::id_reused);
    p->turn();
  });
}

// ---- D's leg ----

TokenRange Traffic::range_of(const Plan& plan, std::size_t part) const {
  const std::uint32_t size = world_.settings.block_size;
  const std::uint32_t begin = std::min(plan.reused_blocks, plan.prompts[part] / size) * size;
  const bool all = begin >= plan.prompts[part] || plan.reused_blocks >= 1000;
  return all ? TokenRange{begin, begin} : TokenRange{begin, plan.prompts[part]};
}

void Traffic::start_decode(Request& r) {
  if (r.decode.state != State::kIdle) return;
  if (!here(r.decode) || world_.instance(r.decode.instance).leaving) {
    r.decode.state = State::kOver;
    return leg_failed(r, kDecodeLeg, here(r.decode) ? 503 : 0, "not here");
  }
  r.decode.state = State::kQueued;
  r.decode.queued_since = world_.now();
  if (r.plan.claims || r.plan.decode_refuses) {
    std::uint32_t rank = 0;
    each_rank(r.decode, [&](Process& p) {
      const PeerAddress address = world_.address(r.plan.prefill, rank++, r.plan.knows_incarnation);
      for (const TransferId id : r.ids) {
        p.submit([id, address](Process& self, Time now) {
          if (self.decode) self.decode->claim(id, address, now);
        });
      }
    });
    turn(r.decode);
  }
  if (r.plan.decode_refuses) {
    cancel_decode(r);
    return leg_failed(r, kDecodeLeg, 400, "the prompt is too long");
  }
  world_.later(r.plan.queue_at_decode, [this, &r] { admit_decode(r); });
}

void Traffic::admit_decode(Request& r) {
  if (r.decode.state != State::kQueued || !here(r.decode)) return;
  const Instance& target = world_.instance(r.plan.prefill);
  const std::uint32_t size = world_.settings.block_size;
  std::uint32_t blocks = 0;
  for (std::size_t part = 0; part < r.ids.size(); ++part) {
    blocks += (range_of(r.plan, part).size() + size - 1) / size;
  }
  bool room = target.lives > 0;
  each_rank(r.decode, [&](Process& p) {
    room = room && p.pool.free_blocks() >= blocks && p.queue_has_room() && !p.stalled &&
           !p.engine_stalled;
  });
  if (room) return register_parts(r);
  world_.journal.mark(Mark::no_room_waits);
  if (world_.now() - r.decode.queued_since >= world_.settings.transfer_total) {
    return expire_decode(r);
  }
  world_.later(kRetryAdmission, [this, &r] { admit_decode(r); });
}

// As the engine: who waits for blocks holds P's under its claim, and P may be what those who hold
// the blocks here wait for. Nothing else ends that [I4].
void Traffic::expire_decode(Request& r) {
  if (waits_for_each_other(r)) world_.journal.mark(Mark::waited_for_each_other);
  cancel_decode(r);
  leg_failed(r, kDecodeLeg, 504, "no blocks within transfer_total");
}

// Its prompt fills the pool of a P that waits for this very pool.
bool Traffic::waits_for_each_other(const Request& r) {
  const auto holds = [](Process* p, const Request& request) {
    return p != nullptr && p->prefill_running(request.ids.front());
  };
  return std::any_of(requests_.begin(), requests_.end(), [&](const auto& entry) {
    const Request& other = *entry.second;
    return other.decode.state == State::kQueued && other.decode.instance == r.prefill.instance &&
           other.prefill.instance == r.decode.instance &&
           holds(world_.rank(r.prefill.instance, 0), r) &&
           holds(world_.rank(other.prefill.instance, 0), other);
  });
}

void Traffic::register_parts(Request& r) {
  Leg& leg = r.decode;
  ++leg.attempt.attempt;
  leg.outstanding = 0;
  leg.broken = false;
  leg.received.clear();
  leg.state = State::kWaiting;
  std::uint32_t rank = 0;
  each_rank(leg, [&](Process&) { leg.outstanding += static_cast<std::uint32_t>(r.ids.size()); });
  each_rank(leg, [&](Process& p) {
    const PeerAddress address = world_.address(r.plan.prefill, rank, r.plan.knows_incarnation);
    const std::uint32_t peer = world_.instance(r.plan.prefill).ranks[rank++];
    for (std::size_t part = 0; part < r.ids.size(); ++part) {
      std::optional<SourceBlocks> source;
      if (pull()) source = r.sources.at(rank - 1).at(part);
      p.reserve_and_register({r.ids[part], leg.attempt}, address, range_of(r.plan, part),
                             r.plan.prompts[part], peer, source);
    }
  });
  turn(leg);
  if (r.plan.preempt != Preempt::kNone && leg.state == State::kWaiting) {
    world_.later(r.plan.preempt_after, [this, &r, attempt = leg.attempt] {
      if (r.decode.attempt == attempt) preempt_decode(r);
    });
  }
}

void Traffic::preempt_decode(Request& r) {
  Leg& leg = r.decode;
  if (leg.state != State::kWaiting || leg.broken || !here(leg)) return;
  bool writing = false;
  for (const std::uint32_t number : world_.instance(r.plan.prefill).ranks) {
    Process* p = world_.alive(number);
    writing = writing || (p != nullptr && p->prefill->writes_in_flight() > 0);
  }
  const Preempt how = r.plan.preempt;
  r.plan.preempt = Preempt::kNone;
  if (how == Preempt::kSupersede) {
    const std::uint32_t size = world_.settings.block_size;
    bool room = true;
    std::uint32_t blocks = 0;
    for (const std::uint32_t tokens : r.plan.prompts) blocks += (tokens + size - 1) / size;
    each_rank(leg, [&](Process& p) {
      room = room && p.pool.free_blocks() >= blocks && p.queue_has_room() && !p.stalled;
    });
    if (!room) return;
    if (writing) world_.journal.mark(Mark::superseded_while_writing);
    drop_received(r);
    return register_parts(r);
  }
  world_.journal.mark(writing ? Mark::withdraw_while_writing : Mark::withdraw_before_write);
  leg.state = State::kPreempting;
  cancel_attempt(r, true);
  if (how != Preempt::kRebind || r.plan.other_decode == r.plan.decode) return;
  // Another D registers while this one is still taking back.
  const std::uint32_t other = r.plan.other_decode;
  if (!world_.instance(other).alive || world_.instance(other).leaving) return;
  world_.journal.mark(Mark::supersede_at_other_decode);
  drop_received(r);
  leg.instance = other;
  leg.life = world_.instance(other).lives;
  leg.attempt = {leg.attempt.binding + 1, 0};
  leg.outstanding = 0;
  leg.queued_since = world_.now();
  leg.state = State::kQueued;
  admit_decode(r);
}

void Traffic::cancel_attempt(Request& r, bool keep) {
  each_rank(r.decode, [&](Process& p) {
    for (const TransferId id : r.ids) {
      p.submit([id, keep](Process& self, Time now) {
        if (!self.decode) return;
        keep ? self.decode->withdraw(id, now) : self.cancel(id, now);
      });
    }
  });
  turn(r.decode);
}

void Traffic::decode_ended(Process& process, const Event& event) {
  Request& r = of(event.transfer);
  Leg& leg = r.decode;
  const Process::Key key{event.transfer, event.attempt};
  const bool mine = process.place.instance == leg.instance && here(leg) &&
                    event.attempt == leg.attempt && leg.state != State::kOver &&
                    leg.outstanding > 0;
  if (!mine) {
    if (event.outcome == Outcome::kDone) process.release_done(key);
    return;
  }
  --leg.outstanding;
  if (event.cause == Cause::kShutdown && world_.instance(leg.instance).leaving) {
    leg.shutdown = true;
  }
  if (event.outcome == Outcome::kDone) {
    leg.received.emplace_back(process.place.number, key);
  } else if (!leg.broken) {
    leg.broken = true;
    if (leg.state == State::kWaiting && leg.outstanding > 0) cancel_attempt(r, false);
  }
  if (leg.outstanding == 0) attempt_over(r);
}

void Traffic::drop_received(Request& r) {
  for (const auto& [number, key] : std::exchange(r.decode.received, {})) {
    if (Process* p = world_.alive(number)) p->release_done(key);
  }
}

void Traffic::attempt_over(Request& r) {
  Leg& leg = r.decode;
  if (!leg.broken) {
    if (leg.state == State::kPreempting || leg.state == State::kWaiting) begin_decoding(r);
    return;
  }
  drop_received(r);
  if (leg.state == State::kPreempting) {
    leg.state = State::kQueued;
    return world_.later(kRetryAdmission, [this, &r] { admit_decode(r); });
  }
  if (r.plan.recompute && !leg.shutdown) {
    world_.journal.mark(Mark::recomputed);
    r.result.recomputed = true;
    return begin_decoding(r);
  }
  world_.journal.mark(Mark::policy_fail);
  leg.state = State::kOver;
  leg_failed(r, kDecodeLeg, 502, "the hand-over failed");
}

void Traffic::begin_decoding(Request& r) {
  r.decode.state = State::kDecoding;
  world_.later(r.plan.decode_time, [this, &r, life = r.decode.life] {
    if (r.decode.state == State::kDecoding && r.decode.life == life) finish_decoding(r);
  });
}

void Traffic::finish_decoding(Request& r) {
  if (!here(r.decode)) return;
  drop_received(r);
  r.decode.state = State::kOver;
  // P, if it still holds the prompt for a recomputed answer, is told that nobody comes for it.
  if (r.result.recomputed) cancel_attempt(r, false);
  world_.later(http(), [this, &r] {
    if (r.result.finished || r.router_dead) return;
    Legs::Actions actions;
    r.legs->on_chunk(kDecodeLeg, 0, 1, world_.now(), actions);
    r.legs->on_chunk(kDecodeLeg, 1, kTokens - 1, world_.now(), actions);
    if (!r.result.finished) r.legs->on_ended(kDecodeLeg, world_.now(), actions);
    act(r, actions);
    r.result.answered = r.result.status == 0;
  });
}

void Traffic::cancel_decode(Request& r) {
  Leg& leg = r.decode;
  if (leg.state == State::kOver) return;
  leg.state = State::kOver;
  drop_received(r);
  cancel_attempt(r, false);
}

// ---- the end ----

void Traffic::check_at_end() {
  for (const auto& [number, request] : requests_) {
    const Result& result = request->result;
    if (result.ends != 1) {
      world_.fault(Checker::kRouter,
                   fmt::format("request {} has {} ends at the router", number, result.ends));
    }
    if (result.answered && result.tokens != kTokens) {
      world_.fault(Checker::kRouter,
                   fmt::format("request {}: {} tokens went to the client, the answer has {}",
                               number, result.tokens, kTokens));
    }
  }
}

}  // namespace baton::sim
