#include "sim/pair_run.h"

#include <fmt/format.h>

#include <array>

#include "sim/world.h"

namespace baton::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::uint32_t kBlockSize = 4;
constexpr std::uint32_t kPrompt = 2 * kBlockSize;
constexpr std::size_t kWindow = 4;  // things beyond the first that a deviation may take
constexpr int kPasses = 3;          // timers that may run before the last event
constexpr TransferId kFirst{0xA, 1};
constexpr TransferId kSecond{0xA, 2};
constexpr TransferId kProbe{0xA, 3};

Settings settings_for(const PairCase& pair) {
  Settings s;
  if (pair.fabric == PairFabric::kPull) s.mode = Mode::kPull;
  s.delivery_complete = pair.fabric != PairFabric::kEfa;
  s.failed_writes_final = pair.fabric == PairFabric::kShm;
  s.fence_on_request = pair.fabric != PairFabric::kShm;
  s.fence_on_crash = pair.fabric == PairFabric::kShm;
  s.fixed_delays = true;
  s.pieces_max = 1;
  s.layers = 2;
  s.pool_blocks = 10;
  s.block_size = kBlockSize;
  s.token_bytes = 4;
  s.write_bytes_max = 64;
  s.writes_in_flight_max = 4;
  s.immediates_max = 16;
  s.transfers_max = 4;
  s.peers_max = 3;
  s.ends_remembered_max = 8;
  s.quarantine_blocks_max = 10;
  s.peer_timeout = milliseconds(100);
  s.lease = milliseconds(40);
  s.lease_renewal = milliseconds(13);
  s.transfer_timeout = milliseconds(60);
  s.resend_min = milliseconds(10);
  s.resend_max = milliseconds(20);
  s.reconnect_grace = milliseconds(15);
  return s;
}

class PairRun final : public Engines {
 public:
  PairRun(const PairCase& pair, Choices& choices, Journal& journal, StateCount* states)
      : pair_(pair),
        choices_(choices),
        journal_(journal),
        states_(states),
        world_(settings_for(pair), choices, 1, journal) {
    world_.engines = this;
    prefill_ = world_.add_instance(Role::kProducer, 1);
    decode_ = world_.add_instance(Role::kConsumer, 1);
  }

  void run() {
    script();
    while (step()) {
    }
    quiet();
  }

  void decode_ended(Process& process, const Event& event) override;
  void prefill_ended(Process&, const Event& event) override {
    if (event.transfer == kFirst) written_ = event.outcome == Outcome::kDone;
  }

 private:
  enum class Kind : std::uint8_t { kItem, kEvent, kPass };
  struct Option {
    Kind kind = Kind::kItem;
    std::size_t index = 0;
  };

  bool pull() const { return pair_.fabric == PairFabric::kPull; }
  Process* p() { return world_.rank(prefill_, 0); }
  Process* d() { return world_.rank(decode_, 0); }
  bool prefix() const {
    return pair_.first == PairEvent::kPrefixHit || pair_.second == PairEvent::kPrefixHit;
  }

  void script();
  void decode_script();
  void hear_announced(TransferId id);
  void claim_at_d();
  bool step();
  void quiet();
  void probe();
  bool benign() const;
  void apply(PairEvent event);
  bool of_engine(PairEvent event);
  void of_world(PairEvent event);
  void restart(std::uint32_t instance);
  template <typename Call>
  void at_d(Call&& call);
  void register_at_d(TransferId id, TokenRange range);
  void begin_at_p(TransferId id);
  void piece_at_p(TransferId id, std::uint32_t tokens);

  const PairCase pair_;
  Choices& choices_;
  Journal& journal_;
  StateCount* states_;
  World world_;
  std::uint32_t prefill_ = 0;
  std::uint32_t decode_ = 0;
  std::uint32_t next_attempt_ = 1;
  bool cancelled_at_d_ = false;
  bool received_ = false;
  bool written_ = false;  // to an attempt that D may have replaced meanwhile
  bool probe_done_ = false;
  std::map<TransferId, SourceBlocks> announced_;  // pull: as D heard it
  std::array<bool, 2> used_{};
  std::uint32_t deviations_ = 0;
  int passes_ = 0;
};

// ---- the request ----

// Each engine does its own steps in order, whatever the schedule.
void PairRun::script() {
  world_.later(microseconds(0), [this] {
    begin_at_p(kFirst);
    world_.later(microseconds(90), [this] {
      piece_at_p(kFirst, kBlockSize);
      world_.later(microseconds(70), [this] {
        piece_at_p(kFirst, kBlockSize);
        if (pull()) world_.later(microseconds(5), [this] { decode_script(); });
      });
    });
  });
  if (!pull()) world_.later(microseconds(5), [this] { decode_script(); });
}

void PairRun::decode_script() {
  hear_announced(kFirst);
  claim_at_d();
  world_.later(microseconds(55),
               [this] { register_at_d(kFirst, {prefix() ? kBlockSize : 0, kPrompt}); });
}

void PairRun::hear_announced(TransferId id) {
  if (!pull() || p() == nullptr) return;
  if (auto source = p()->announced(id)) announced_[id] = std::move(*source);
}

void PairRun::claim_at_d() {
  Process* process = d();
  if (process == nullptr || cancelled_at_d_ || !world_.instance(prefill_).alive) return;
  const PeerAddress address = world_.address(prefill_, 0, true);
  process->submit([address](Process& self, Time now) {
    if (self.decode) self.decode->claim(kFirst, address, now);
  });
}

void PairRun::register_at_d(TransferId id, TokenRange range) {
  Process* process = d();
  if (process == nullptr || !process->room_for(range)) return;
  if (id == kFirst && (cancelled_at_d_ || received_)) return;
  std::optional<SourceBlocks> source;
  if (pull()) {
    hear_announced(id);
    const auto heard = announced_.find(id);
    if (heard == announced_.end()) return;  // nobody told of it
    source = heard->second;
  }
  process->reserve_and_register({id, {0, next_attempt_++}}, world_.address(prefill_, 0, true),
                                range, kPrompt, world_.instance(prefill_).ranks[0], source);
}

void PairRun::begin_at_p(TransferId id) {
  Process* process = p();
  if (process == nullptr || process->prefill_running(id)) return;
  if (!process->begin_prefill(id, kPrompt)) return;
  process->submit([id](Process& self, Time now) {
    if (self.prefill) self.prefill->expect(id, kPrompt, now);
  });
}

void PairRun::piece_at_p(TransferId id, std::uint32_t tokens) {
  Process* process = p();
  if (process == nullptr || !process->prefill_computing(id)) return;
  process->compute_piece(id, tokens, TokenId{7});
}

void PairRun::decode_ended(Process& process, const Event& event) {
  if (event.transfer == kProbe) probe_done_ = event.outcome == Outcome::kDone;
  if (event.outcome != Outcome::kDone) return;
  if (event.transfer == kFirst) received_ = true;
  const Process::Key key{event.transfer, event.attempt};
  world_.later(microseconds(30), [this, number = process.place.number, key] {
    if (Process* self = world_.alive(number)) self->release_done(key);
  });
}

// ---- the events ----

void PairRun::apply(PairEvent event) {
  Line line;
  line.at = world_.now();
  line.event = "EVENT";
  line.word = to_string(event);
  journal_.note(line);
  if (!of_engine(event)) of_world(event);
}

template <typename Call>
void PairRun::at_d(Call&& call) {
  Process* process = d();
  if (process == nullptr) return;
  process->submit([call](Process& self, Time now) {
    if (self.decode) call(*self.decode, now);
  });
}

// What one of the two engines says. False: the event is not one of these.
bool PairRun::of_engine(PairEvent event) {
  switch (event) {
    case PairEvent::kRegister:
      register_at_d(kSecond, {0, kPrompt});
      return true;
    case PairEvent::kReady:
      begin_at_p(kSecond);
      piece_at_p(kSecond, kPrompt);
      return true;
    case PairEvent::kWithdraw:
      at_d([](handover::DecodeSide& side, Time now) { side.withdraw(kFirst, now); });
      return true;
    case PairEvent::kCancelP:
      if (Process* process = p()) process->abandon_prefill(kFirst);
      return true;
    case PairEvent::kCancelD:
      cancelled_at_d_ = true;
      at_d([](handover::DecodeSide& side, Time now) { side.cancel(kFirst, now); });
      return true;
    case PairEvent::kPrefixHit:
      register_at_d(kFirst, {kBlockSize, kBlockSize});
      return true;
    case PairEvent::kNewAttempt:
      register_at_d(kFirst, {prefix() ? kBlockSize : 0, kPrompt});
      return true;
    case PairEvent::kHandshake:
    case PairEvent::kCrashP:
    case PairEvent::kCrashD:
    case PairEvent::kRestart:
    case PairEvent::kRestartD:
    case PairEvent::kLeaseExpiry:
    case PairEvent::kLateWrite:
    case PairEvent::kLostFin:
    case PairEvent::kLostImmediate:
    case PairEvent::kLateRegister:
    case PairEvent::kCount:
      return false;
  }
  return false;
}

void PairRun::restart(std::uint32_t instance) {
  world_.crash(instance);
  world_.start(instance);
}

// What happens to processes, messages, bytes and time.
void PairRun::of_world(PairEvent event) {
  switch (event) {
    case PairEvent::kHandshake:
      return world_.cut_any();
    case PairEvent::kCrashP:
      return world_.crash(prefill_);
    case PairEvent::kCrashD:
      return world_.crash(decode_);
    case PairEvent::kRestart:
      return restart(prefill_);
    case PairEvent::kRestartD:
      return restart(decode_);
    case PairEvent::kLeaseExpiry:
      world_.lose_next[static_cast<std::size_t>(wire::MessageType::kRenew)] = 1000;
      return world_.leap(world_.settings.lease + milliseconds(1));
    case PairEvent::kLateWrite:
      if (p() == nullptr || d() == nullptr) return;
      return world_.hold_data(p()->place.number, d()->place.number, std::chrono::hours(1));
    case PairEvent::kLostFin:
      ++world_.lose_next[static_cast<std::size_t>(wire::MessageType::kFinal)];
      return;
    case PairEvent::kLostImmediate:
      ++world_.lose_immediates;
      return;
    case PairEvent::kLateRegister:
      return world_.repeat_last(wire::MessageType::kRegister);
    case PairEvent::kRegister:
    case PairEvent::kReady:
    case PairEvent::kWithdraw:
    case PairEvent::kCancelP:
    case PairEvent::kCancelD:
    case PairEvent::kPrefixHit:
    case PairEvent::kNewAttempt:
    case PairEvent::kCount:
      return;
  }
}

// ---- the schedule ----

bool PairRun::step() {
  std::array<Option, kWindow + 4> options;
  std::size_t n = 0;
  const std::size_t pending = world_.pending();
  if (pending > 0) {
    const std::size_t most = deviations_ < pair_.deviations ? 1 + kWindow : 1;
    for (std::size_t i = 0; i < std::min(pending, most); ++i) options[n++] = {Kind::kItem, i};
  } else if (passes_ < kPasses && !(used_[0] && used_[1])) {
    options[n++] = {Kind::kPass, 0};
  }
  const bool same = pair_.first == pair_.second;
  if (!used_[0]) options[n++] = {Kind::kEvent, 0};
  if (!used_[1] && (!same || used_[0])) options[n++] = {Kind::kEvent, 1};
  if (n == 0) return false;
  const Option chosen = options[n == 1 ? 0 : choices_.pick(n)];
  switch (chosen.kind) {
    case Kind::kItem:
      if (chosen.index > 0) ++deviations_;
      world_.fire(chosen.index);
      break;
    case Kind::kPass:
      ++passes_;
      if (!world_.pass_time()) passes_ = kPasses;
      break;
    case Kind::kEvent:
      used_[chosen.index] = true;
      apply(chosen.index == 0 ? pair_.first : pair_.second);
      world_.turn_all();
      break;
  }
  if (states_ != nullptr) states_->add(world_.fingerprint());
  return !journal_.failed();
}

// ---- afterwards ----

void PairRun::quiet() {
  world_.heal();
  world_.start(prefill_);
  world_.start(decode_);
  const Settings& s = world_.settings;
  // An engine does not keep a claim for ever.
  world_.later(s.transfer_timeout, [this] {
    if (Process* process = d()) {
      process->submit([](Process& self, Time now) {
        if (self.decode && self.decode->open_transfers() == 0) self.decode->cancel(kFirst, now);
      });
      process->turn();
    }
  });
  const Time settle = world_.now() + s.transfer_timeout + milliseconds(1);
  const Duration bound = settle - world_.now() + world_.all_ends_within();
  world_.run_until(world_.now() + bound, [this, settle] {
    return (world_.now() >= settle || received_) && world_.idle() && world_.pending() == 0;
  });
  if (!world_.idle()) {
    world_.fault(Checker::kBound, fmt::format("not ended after {} ms{}", bound / milliseconds(1),
                                              world_.what_is_left()));
  }
  if (benign() && !received_) {
    world_.fault(Checker::kBound, "a request that nobody gave up was not received");
  }
  probe();
  world_.check_at_end();
}

// What the protocol makes good by itself: nobody's engine may notice it. A second break of the
// connection may come while the first is being mended, which takes longer than the grace here. An
// attempt that comes when P has written the one before comes too late.
bool PairRun::benign() const {
  const auto good = [this](PairEvent event) {
    return event == PairEvent::kHandshake || event == PairEvent::kRegister ||
           event == PairEvent::kReady || event == PairEvent::kLostFin ||
           event == PairEvent::kLateRegister || (event == PairEvent::kNewAttempt && !written_);
  };
  const bool twice = pair_.first == PairEvent::kHandshake && pair_.second == PairEvent::kHandshake;
  return good(pair_.first) && good(pair_.second) && !twice;
}

void PairRun::probe() {
  if (journal_.failed()) return;
  begin_at_p(kProbe);
  if (!pull()) register_at_d(kProbe, {0, kPrompt});
  piece_at_p(kProbe, kPrompt);
  world_.turn_all();
  if (pull()) register_at_d(kProbe, {0, kPrompt});
  world_.turn_all();
  world_.run_until(world_.now() + world_.settings.transfer_timeout + world_.settings.peer_timeout,
                   [this] { return probe_done_ && world_.idle(); });
  if (!probe_done_) world_.fault(Checker::kProbe, "a plain request failed after the faults");
}

}  // namespace

std::string_view to_string(PairEvent event) {
  constexpr std::array<std::string_view, kPairEvents> kNames{
      "handshake",      "register",   "ready",       "withdraw",      "cancel P",   "cancel D",
      "crash P",        "crash D",    "restart",     "lease expiry",  "late write", "lost FIN",
      "lost immediate", "prefix hit", "new attempt", "late register", "restart D"};
  return kNames[static_cast<std::size_t>(event)];
}

std::string_view to_string(PairFabric fabric) {
  constexpr std::array<std::string_view, kPairFabrics> kNames{"shm", "tcp", "efa", "pull"};
  return kNames[static_cast<std::size_t>(fabric)];
}

void run_pair(const PairCase& pair, Choices& choices, Journal& journal, StateCount* states) {
  PairRun(pair, choices, journal, states).run();
}

}  // namespace baton::sim
