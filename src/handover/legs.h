// The router's part: one request with a prefill (P) and a decode (D) leg. Push: both start at once.
// Pull: D is chosen, and its leg started, once P has announced its blocks. Pure; one thread drives
// it.
//
// Every call appends what to do to `out` in order; exactly one kFinish comes, last. The caller
// keeps the payloads: a kForward says to pass on the chunk that the same call announced.
//
// The first token may come from either leg: chunks carry the index of their first token, and the
// second copy is dropped. A leg that fails before anything was streamed makes an HTTP error; after
// that the stream ends with an error event and never as if finished.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace baton::handover {

enum class Leg : std::uint8_t { kPrefill, kDecode };

struct LegAction {
  enum class Kind : std::uint8_t {
    kForward,      // pass the announced chunk on to the client, less its first `skip_tokens` tokens
    kDrop,         // the announced chunk was a second copy
    kCancelLeg,    // end `leg`: close its connection and tell its server
    kPlaceDecode,  // pull: P's blocks are announced: choose D and start its leg
    kErrorResponse,  // answer HTTP `status` with `reason`
    kErrorEvent,     // send an SSE error event with `reason`, then end the stream
    kFinish,         // the request is over; nothing comes after this
  };
  Kind kind = Kind::kFinish;
  Leg leg = Leg::kPrefill;
  std::uint32_t skip_tokens = 0;
  int status = 0;  // 502: a leg failed; 503: it had no room or is shutting down; 504: the deadline
                   // passed; 4xx: the leg's own refusal of the request, passed on
  std::string reason;  // names the leg and the cause
};

class Legs {
 public:
  struct Options {
    // True: P's first chunk is forwarded as soon as it comes (its server answers with tokens).
    // False: P's tokens are dropped and only D's are streamed.
    bool first_token_from_prefill = true;
    bool decode_after_prefill = false;  // pull
    Time deadline = kNever;             // of the whole request, while nothing was streamed yet
    Duration idle_timeout =
        Duration::max();  // after the first chunk: the longest silence of D's leg
  };
  Legs(const Options& options, Time now);

  using Actions = std::vector<LegAction>;

  // A chunk with `tokens` >= 0 tokens, the first of which is number `first_index` of the answer (0
  // based). One call, one kForward or kDrop for it (or an error if tokens are missing in between).
  void on_chunk(Leg leg, std::uint32_t first_index, std::uint32_t tokens, Time now, Actions& out);
  // Pull: P has announced its blocks; asks for D once.
  void on_prefilled(Time now, Actions& out);
  // Pull: D is chosen and its leg started. Before that D's leg can only fail.
  void on_decode_started();
  // The leg answered completely and well. D's end finishes the request; P's end only its own leg.
  void on_ended(Leg leg, Time now, Actions& out);
  // `status`: what the leg's server answered (0: no answer, the connection failed or broke).
  void on_failed(Leg leg, int status, std::string_view reason, Time now, Actions& out);
  void on_client_gone(Time now, Actions& out);
  void on_time(Time now, Actions& out);
  Time next_deadline() const;

  bool finished() const { return finished_; }
  bool streamed() const { return streamed_; }
  std::uint32_t tokens_forwarded() const { return next_index_; }

 private:
  enum class LegState : std::uint8_t { kPlanned, kRunning, kEnded, kFailed, kCancelled };

  void fail(int status, std::string reason, Actions& out);
  void cancel_running(Actions& out);
  bool decode_is_planned() const { return decode_ == LegState::kPlanned; }
  LegState& state(Leg leg) { return leg == Leg::kPrefill ? prefill_ : decode_; }

  Options options_;
  LegState prefill_ = LegState::kRunning;
  LegState decode_ = LegState::kRunning;
  bool asked_for_decode_ = false;
  bool streamed_ = false;
  bool finished_ = false;
  std::uint32_t next_index_ = 0;
  Time last_chunk_{};
};

}  // namespace baton::handover
