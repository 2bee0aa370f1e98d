#include "handover/legs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace baton::handover {
namespace {

std::string_view name_of(Leg leg) {
  return leg == Leg::kPrefill ? "prefill" : "decode";
}

// What the client is told when a leg's server answered `status` (0: it did not answer at all). Its
// own refusal of the request (4xx) is the client's to see; its lack of room stays one; everything
// else is a broken gateway.
int status_for(int status) {
  if (status >= 400 && status < 500) return status;
  if (status == 503 || status == 504) return status;
  return 502;
}

LegAction action(LegAction::Kind kind) {
  LegAction out;
  out.kind = kind;
  return out;
}

}  // namespace

Legs::Legs(const Options& options, Time now) : options_(options), last_chunk_(now) {
  if (options.decode_after_prefill) decode_ = LegState::kPlanned;
}

void Legs::on_prefilled(Time, Actions& out) {
  if (finished_ || !decode_is_planned() || std::exchange(asked_for_decode_, true)) return;
  LegAction place = action(LegAction::Kind::kPlaceDecode);
  place.leg = Leg::kDecode;
  out.push_back(std::move(place));
}

void Legs::on_decode_started() {
  if (decode_is_planned()) decode_ = LegState::kRunning;
}

void Legs::on_chunk(Leg leg, std::uint32_t first_index, std::uint32_t tokens, Time now,
                    Actions& out) {
  if (finished_ || state(leg) != LegState::kRunning ||
      (leg == Leg::kPrefill && !options_.first_token_from_prefill)) {
    out.push_back(action(LegAction::Kind::kDrop));
    return;
  }
  if (leg == Leg::kDecode) last_chunk_ = now;
  if (first_index > next_index_) {
    out.push_back(action(LegAction::Kind::kDrop));
    state(leg) = LegState::kFailed;
    return fail(502,
                fmt::format("{} leg: its chunk begins at token {}, token {} was expected",
                            name_of(leg), first_index, next_index_),
                out);
  }
  const std::uint32_t end = first_index + tokens;
  // A chunk without tokens (a role, a finish reason, usage) is D's to send; the first of them opens
  // the stream.
  const bool fresh = tokens == 0 ? leg == Leg::kDecode : end > next_index_;
  if (!fresh) {
    out.push_back(action(LegAction::Kind::kDrop));
    return;
  }
  LegAction forward = action(LegAction::Kind::kForward);
  forward.leg = leg;
  forward.skip_tokens = tokens == 0 ? 0 : next_index_ - first_index;
  out.push_back(forward);
  next_index_ = std::max(next_index_, end);
  if (!streamed_) last_chunk_ = now;
  streamed_ = true;
}

void Legs::on_ended(Leg leg, Time, Actions& out) {
  if (finished_ || state(leg) != LegState::kRunning) return;
  state(leg) = LegState::kEnded;
  if (leg == Leg::kPrefill && decode_is_planned()) {
    return fail(502, "prefill leg: it ended before a decode instance was chosen", out);
  }
  if (leg == Leg::kPrefill) return;  // D has the rest
  cancel_running(out);
  finished_ = true;
  out.push_back(action(LegAction::Kind::kFinish));
}

void Legs::on_failed(Leg leg, int status, std::string_view reason, Time, Actions& out) {
  const bool open = state(leg) == LegState::kRunning || state(leg) == LegState::kPlanned;
  if (finished_ || !open) return;
  state(leg) = LegState::kFailed;
  fail(status_for(status), fmt::format("{} leg: {}", name_of(leg), reason), out);
}

void Legs::on_client_gone(Time, Actions& out) {
  if (finished_) return;
  cancel_running(out);
  finished_ = true;
  out.push_back(action(LegAction::Kind::kFinish));
}

void Legs::on_time(Time now, Actions& out) {
  if (finished_ || now < next_deadline()) return;
  fail(504,
       streamed_ ? "decode leg: nothing came for too long" : "the deadline of the request passed",
       out);
}

Time Legs::next_deadline() const {
  if (finished_) return kNever;
  if (!streamed_) return options_.deadline;
  if (options_.idle_timeout == Duration::max()) return kNever;
  return last_chunk_ + options_.idle_timeout;
}

void Legs::cancel_running(Actions& out) {
  for (const Leg leg : {Leg::kPrefill, Leg::kDecode}) {
    if (state(leg) != LegState::kRunning) continue;
    state(leg) = LegState::kCancelled;
    LegAction cancel = action(LegAction::Kind::kCancelLeg);
    cancel.leg = leg;
    out.push_back(cancel);
  }
}

void Legs::fail(int status, std::string reason, Actions& out) {
  LegAction error =
      action(streamed_ ? LegAction::Kind::kErrorEvent : LegAction::Kind::kErrorResponse);
  error.status = status;
  error.reason = std::move(reason);
  out.push_back(std::move(error));
  cancel_running(out);
  finished_ = true;
  out.push_back(action(LegAction::Kind::kFinish));
}

}  // namespace baton::handover
