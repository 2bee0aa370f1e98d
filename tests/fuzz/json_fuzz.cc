// Text that comes over HTTP: request bodies, --kv-transfer-config, what the legs of a routed
// request say, and the event stream it comes in. Beside not crashing: what the router makes of a
// body that it accepted is accepted by the instances, and a stream reads the same however it is
// cut.
#include <nlohmann/json.hpp>
#include <string>

#include "base/check.h"
#include "http/sse.h"
#include "input.h"
#include "serving/api_error.h"
#include "serving/completion_request.h"
#include "serving/kv_transfer_config.h"
#include "serving/leg_messages.h"

namespace baton::fuzz {
namespace {

void check_json(std::string_view text) {
  BATON_CHECK(nlohmann::json::accept(text), "not JSON");
}

void request(Input& in) {
  const auto endpoint =
      in.below(2) == 0 ? serving::Endpoint::kCompletions : serving::Endpoint::kChat;
  const auto body = in.rest();
  static_cast<void>(serving::parse_completion_request(endpoint, body));
  const auto parsed = serving::parse_completion_request(endpoint, body, serving::KvParams::kIgnore);
  if (!parsed) return check_json(serving::error_body(parsed.error()));
  serving::LegPlan plan;
  plan.transfer = {1, 2};
  plan.prefill = {"127.0.0.1", 1, "p", 3};
  const auto legs = serving::make_leg_bodies(body, plan);
  BATON_CHECK(legs.has_value(), "an accepted body has no legs");
  const std::string decode = serving::decode_body(legs->decode, plan, std::nullopt);
  for (const std::string& leg : {legs->prefill, decode}) {
    const auto again = serving::parse_completion_request(endpoint, leg);
    BATON_CHECK(again.has_value(), "an instance refuses what the router accepted");
    BATON_CHECK(again->kv && again->kv->transfer_id == plan.transfer, "a leg without its transfer");
    BATON_CHECK(again->prompt_text == parsed->prompt_text, "another prompt");
    BATON_CHECK(again->prompt_tokens == parsed->prompt_tokens, "another prompt");
  }
}

void legs(Input& in) {
  const bool after_first = in.below(2) == 1;
  const auto data = in.rest();
  static_cast<void>(serving::read_prefill_event(data));
  const auto event = serving::read_decode_event(data, after_first);
  if (!event.record.empty()) check_json(event.record);
  std::string record, kept;
  const std::string body = serving::take_record(data, record, kept);
  if (!kept.empty()) check_json(serving::with_host(kept, "h"));
  if (!record.empty()) check_json(serving::with_record(body, record));
  check_json(serving::error_body(serving::parse_error_body(502, data)));
}

std::string read_stream(std::string_view bytes, std::size_t piece) {
  http::SseParser parser(4096);
  std::string found;
  while (!bytes.empty()) {
    const auto events = parser.push(bytes.substr(0, piece));
    if (!events) return found + "too long";
    for (const auto& event : *events) found += event.event + '\n' + event.data + '\n';
    bytes.remove_prefix(std::min(piece, bytes.size()));
  }
  return found;
}

void stream(Input& in) {
  const std::size_t piece = 1 + in.byte();
  const auto bytes = in.rest();
  if (bytes.size() > 4096) return;  // where a long event is refused depends on the cut
  BATON_CHECK(read_stream(bytes, piece) == read_stream(bytes, bytes.size()), "another stream");
}

}  // namespace
}  // namespace baton::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace baton;
  fuzz::Input in(data, size);
  switch (in.below(4)) {
    case 0:
      fuzz::request(in);
      break;
    case 1:
      fuzz::legs(in);
      break;
    case 2:
      fuzz::stream(in);
      break;
    default:
      static_cast<void>(serving::parse_kv_transfer_config(in.rest()));
  }
  return 0;
}
