#include "serving/route_bounds.h"

#include <fmt/format.h>

#include "http/server.h"

namespace baton::serving {
namespace {

using handover::Config;

Duration first_answer(const RouterOptions& r, const Config&) {
  return r.request_timeout;
}
Duration next_chunk(const RouterOptions& r, const Config&) {
  return r.idle_timeout;
}
Duration silent(const RouterOptions& r, const Config&) {
  return r.upstreams.peer_timeout;
}
Duration verdict(const RouterOptions&, const Config&) {
  return kVerdictGrace;
}
Duration placing(const RouterOptions&, const Config& p) {
  return place_within(p.lease);
}
Duration record(const RouterOptions&, const Config&) {
  return kPrefillGrace;
}
Duration taken(const RouterOptions&, const Config&) {
  return http::ServerOptions{}.write_timeout;
}
Duration message(const RouterOptions&, const Config&) {
  return {};
}

}  // namespace

const std::array<RouteBound, kRouteBoundsCount> kRouteBounds{{
    {"R", "both legs asked", "any token, or the whole of a plain answer", "the client",
     "the request's deadline; 504 `deadline`, both legs are closed", "--request-timeout",
     first_answer, "serving_test PairTest.HangsEndWithTheRequestsDeadline"},
    {"R", "streaming", "D's next chunk", "the client",
     "nothing came since the last one; error event `deadline`, both legs are closed",
     "--idle-timeout", next_chunk,
     "handover_test LegsTest.TheDeadlineHoldsUntilTheFirstByteThenTheIdleTimeout"},
    {"R", "any", "an instance's process, or a leg's connection", "the client",
     "the connection closes; 502 that names it, or an error event; the other leg is closed",
     "one message", message, "serving_test PairTest.ADThatIsGoneIsToldAtOnceAndPIsFreed"},
    {"R", "any", "an instance stops, or the link to it is cut without a word", "the client",
     "its polls are unanswered; 504 `instance_silent`, the other leg is closed", "--peer-timeout",
     silent, "serving_test PairTest.ASilentInstanceEndsItsRequests"},
    {"R", "D waits for P's blocks", "P's leg", "the client",
     "where D does not recompute: its word on it, or none in this time; 502, D's leg is closed",
     "0.5 s", verdict, "serving_test PairTest.APThatDiesWhileDWaitsEndsTheRequestSoon"},
    {"R", "P announced, pull", "a free D", "R",
     "placed on the least loaded D in any case: D's agent renews the lease", "half of P's --lease",
     placing, "serving_test PullPairTest.NobodyWaitsForASlotUntilTheLeaseIsOver"},
    {"R", "answered, debug", "P's record", "the client", "the answer ends without it", "1 s",
     record, "serving_test PairTest.DebugEndsWithoutPsRecordIfItDoesNotCome"},
    {"P, D", "any", "the router's process", "both engines",
     "the connections of the legs close: the requests are aborted, blocks are free", "one message",
     message, "serving_test InstanceServerTest.AClientThatLeavesIsAborted"},
    {"R", "any", "the client", "R and both engines",
     "its connection closes; the legs are closed, their requests aborted", "one message", message,
     "serving_test PairTest.AClientThatLeavesEndsBothLegs"},
    {"R, P, D", "any", "who asked stops, or the link to it is cut without a word", "the engines",
     "no byte of the answer is taken: its connection is closed, the request aborted. Before that "
     "the request goes on, and its hand-over ends by the table above",
     "30 s", taken, "http_test HttpServer.ClosesAClientThatTakesNothing"},
}};

std::string route_bounds_markdown() {
  const RouterOptions router;
  const Config prefill;
  std::string out =
      "| side | state | what is lost | who learns it | how | within | by default |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const RouteBound& bound : kRouteBounds) {
    const Duration longest = bound.within(router, prefill);
    const std::string figure =
        longest == Duration{}
            ? "-"
            : fmt::format("{:g} s", std::chrono::duration<double>(longest).count());
    out += fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", bound.side, bound.state,
                       bound.lost, bound.knows, bound.how, bound.formula, figure);
  }
  return out;
}

}  // namespace baton::serving
