#include "serving/route_record.h"

#include "serving/json.h"

namespace baton::serving {
namespace {

Json leg(const RouteRecord::Leg& leg) {
  return {{"engine_id", leg.engine_id},
          {"url", leg.url},
          {"span_id", leg.span_id},
          {"status", leg.status},
          {"times",
           {{"dispatched", leg.dispatched},
            {"answered", leg.answered},
            {"first_token", leg.first_token},
            {"ended", leg.ended}}}};
}

}  // namespace

std::string route_record(const RouteRecord& record) {
  return to_text(Json{
      {"side", "router"},
      {"transfer_id", record.transfer.to_string()},
      {"request_id", record.request_id},
      {"trace_id", record.trace.trace_id},
      {"span_id", record.trace.span_id},
      {"parent_span_id", record.trace.parent},
      {"path", record.path},
      {"stream", record.stream},
      {"binding", record.binding},
      {"end", record.end},
      {"cause", record.cause},
      {"text", record.text},
      {"prefill", leg(record.prefill)},
      {"decode", leg(record.decode)},
      {"times",
       {{"arrived", record.arrived}, {"first_byte", record.first_byte}, {"ended", record.ended}}}});
}

}  // namespace baton::serving
