// Requests, as the router and the engines see them: the router drives both legs with the shipped
// Legs; P's engine computes and hands in, D's engine reserves, registers, decodes, is preempted,
// and recomputes or fails. A request may have several parts (sub-requests), and every part one
// transfer that all ranks share.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "handover/legs.h"
#include "sim/world.h"

namespace baton::sim {

enum class Preempt : std::uint8_t {
  kNone,
  kWithdraw,   // takes the registration back, then registers again at other blocks
  kSupersede,  // registers again at other blocks without taking back
  kRebind,     // takes it back and registers at another D
};

struct Plan {
  std::uint32_t number = 0;
  std::uint32_t prefill = 0;  // instances
  std::uint32_t decode = 0;
  std::uint32_t other_decode = 0;      // of kRebind
  std::vector<std::uint32_t> prompts;  // tokens of each part
  std::uint32_t reused_blocks = 0;     // D's prefix hit, of each part; all: nothing wanted
  std::uint32_t piece_tokens = 8;
  bool claims = true;
  bool knows_incarnation = true;
  bool recompute = false;       // kv_load_failure_policy
  bool decode_refuses = false;  // D's server turns the request down
  bool first_token_from_prefill = true;
  Preempt preempt = Preempt::kNone;
  Duration preempt_after{};  // from registration
  Duration prefill_preempt_after{-1};
  Duration client_gone_after{-1};
  Duration prefill_delay{};
  Duration piece_time = std::chrono::milliseconds(2);
  Duration decode_delay{};
  Duration queue_at_decode{};  // between D's claim and its registration
  Duration decode_time = std::chrono::milliseconds(5);
  Duration request_timeout = std::chrono::milliseconds(1500);
};

class Traffic final : public Engines {
 public:
  static constexpr std::uint32_t kParts = 4;
  static constexpr std::uint32_t kTokens = 4;            // of an answer
  static constexpr std::uint64_t kForeign = 1ULL << 40;  // transfers from here on are not requests

  struct Result {
    bool finished = false;
    int ends = 0;           // kFinish of the router
    bool answered = false;  // the client has the whole answer
    int status = 0;         // of the error, if one was sent
    std::uint32_t tokens = 0;
    bool recomputed = false;
    Time at{};
  };

  explicit Traffic(World& world);

  void start(const Plan& plan, std::uint32_t router = 0);  // now
  void router_dies(std::uint32_t router);
  void instance_gone(std::uint32_t instance);  // before World::crash() or leave()
  void drain(std::uint32_t instance);          // every leg there fails; its agents abandon

  bool all_finished() const { return open_ == 0; }
  std::size_t open() const { return open_; }
  const Result& result(std::uint32_t number) const { return requests_.at(number)->result; }
  std::size_t requests() const { return requests_.size(); }
  void check_at_end();

  // Engines.
  void decode_ended(Process& process, const Event& event) override;
  void prefill_ended(Process& process, const Event& event) override;

 private:
  enum class State : std::uint8_t { kIdle, kQueued, kWaiting, kPreempting, kDecoding, kOver };
  struct Leg {
    State state = State::kIdle;
    std::uint32_t instance = 0;
    std::uint32_t life = 0;
    // D: the attempt under way.
    baton::Attempt attempt{0, 0};
    std::uint32_t outstanding = 0;
    bool broken = false;
    bool shutdown = false;
    std::vector<std::pair<std::uint32_t, Process::Key>> received;  // process, attempt
    Time queued_since{};                                           // D: for blocks
    // P.
    std::uint32_t computed = 0;
  };
  struct Request {
    Plan plan;
    std::uint32_t router = 0;
    bool router_dead = false;
    std::vector<TransferId> ids;
    std::optional<handover::Legs> legs;
    Leg prefill;
    Leg decode;
    std::vector<std::vector<SourceBlocks>> sources;  // pull: by rank and part, as P announced
    Result result;
  };

  Request& of(TransferId id) { return *requests_.at(static_cast<std::uint32_t>(id.low / kParts)); }
  bool here(const Leg& leg) const;
  template <typename F>
  void each_rank(const Leg& leg, F&& call);
  void turn(const Leg& leg);
  void act(Request& r, const handover::Legs::Actions& actions);
  void cancel_leg(Request& r, handover::Leg leg);
  void leg_failed(Request& r, handover::Leg leg, int status, const char* why);
  void arm(Request& r, Time at);
  Duration http() { return world_.delay(); }

  void start_prefill(Request& r);
  void admit_prefill(Request& r);
  void next_piece(Request& r);
  void preempt_prefill(Request& r);
  void cancel_prefill(Request& r);
  void prefill_answers(Request& r);
  bool announce(Request& r);
  void maybe_reuse(Process& process, TransferId id);

  void start_decode(Request& r);
  void admit_decode(Request& r);
  void expire_decode(Request& r);
  bool waits_for_each_other(const Request& r);
  void register_parts(Request& r);
  void preempt_decode(Request& r);
  void attempt_over(Request& r);
  void begin_decoding(Request& r);
  void finish_decoding(Request& r);
  void cancel_decode(Request& r);
  void cancel_attempt(Request& r, bool keep);
  void drop_received(Request& r);
  TokenRange range_of(const Plan& plan, std::size_t part) const;

  bool pull() const { return world_.settings.mode == Mode::kPull; }

  World& world_;
  std::map<std::uint32_t, std::unique_ptr<Request>> requests_;
  std::size_t open_ = 0;
};

}  // namespace baton::sim
