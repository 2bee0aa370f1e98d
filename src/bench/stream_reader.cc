#include "bench/stream_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "serving/json.h"

namespace baton::bench {
namespace {

using serving::find;
using serving::Json;

constexpr std::string_view kTransferHeader = "X-Baton-Transfer-Id";
constexpr std::size_t kErrorBodyMax = 64 << 10;

// The text of a choice; absent for one that only says who speaks, which is no token.
std::optional<std::string> text_of(Api api, const Json& choice) {
  if (api == Api::kCompletions) return serving::text_or(choice, "text", "");
  const Json* delta = find(choice, "delta");
  if (delta == nullptr) return "";
  std::string text = serving::text_or(*delta, "content", "");
  const bool says_role = find(*delta, "role") != nullptr;
  if (says_role && text.empty() && find(choice, "finish_reason") == nullptr) return {};
  return text;
}

std::string cause_of(http::CallFailure failure) {
  std::string cause(http::to_string(failure));
  std::replace(cause.begin(), cause.end(), ' ', '_');
  return cause;
}

}  // namespace

void StreamReader::on_headers(int status, const http::Headers& headers) {
  status_ = status;
  result_.transfer_id = std::string(headers.get(kTransferHeader));
}

void StreamReader::on_data(std::string_view bytes, Duration at) {
  if (status_ != 200) {
    error_body_.append(
        bytes.substr(0, kErrorBodyMax - std::min(kErrorBodyMax, error_body_.size())));
    return;
  }
  const auto events = parser_.push(bytes);
  if (!events) return fail_with("bad_stream", events.error().message);
  for (const http::SseEvent& event : *events) take_event(event, at);
}

void StreamReader::take_event(const http::SseEvent& event, Duration at) {
  if (failed_) return;
  if (event.data == "[DONE]") {
    done_ = true;
    return;
  }
  const Result<Json> parsed = serving::parse_json(event.data);
  if (!parsed || !parsed->is_object()) {
    return fail_with("bad_stream", "an event that is no JSON object");
  }
  if (find(*parsed, "error") != nullptr) return take_failure(event.data, "error_event");
  if (const Json* usage = find(*parsed, "usage"); usage != nullptr && usage->is_object()) {
    result_.input_len =
        static_cast<std::uint32_t>(serving::uint_or(*usage, "prompt_tokens", result_.input_len));
    result_.output_len = static_cast<std::uint32_t>(
        serving::uint_or(*usage, "completion_tokens", result_.output_len));
    result_.is_counted = result_.output_len > 0;
  }
  const Json* choices = find(*parsed, "choices");
  if (choices == nullptr || !choices->is_array() || choices->empty()) return;
  const std::optional<std::string> text = text_of(api_, choices->front());
  if (!text) return;
  if (keep_text_) result_.text += *text;
  take_token(at);
}

void StreamReader::take_token(Duration at) {
  ++events_;
  if (!result_.first) {
    result_.first = at;
  } else {
    if (!result_.second) result_.second = at;
    result_.gaps.push_back(std::chrono::duration<double>(at - *result_.last).count());
  }
  result_.last = at;
}

void StreamReader::on_end() {
  if (failed_) return;
  if (status_ != 200) return take_failure(error_body_, fmt::format("http_{}", status_));
  if (!done_) return fail_with("stream_cut", "the stream ended without [DONE]");
  if (!result_.first) return fail_with("no_tokens", "the answer has no token");
  if (!result_.is_counted) result_.output_len = events_;
  result_.ok = true;
}

void StreamReader::on_error(const http::CallError& error) {
  if (failed_) return;
  const bool cut = result_.first && error.failure != http::CallFailure::kTimedOut;
  fail_with(cut ? "stream_cut" : cause_of(error.failure), error.message);
}

// {"error": {"message", "baton": {"cause"}}}, or whatever else was said.
void StreamReader::take_failure(std::string_view body, std::string fallback) {
  const Json parsed = serving::parse_json(body).value_or(Json::object());
  const Json* error = parsed.is_object() ? find(parsed, "error") : nullptr;
  if (error == nullptr || !error->is_object()) {
    return fail_with(std::move(fallback), std::string(body.substr(0, 200)));
  }
  const Json* baton = find(*error, "baton");
  std::string cause =
      baton != nullptr && baton->is_object() ? serving::text_or(*baton, "cause", "") : "";
  if (cause.empty()) cause = std::move(fallback);
  fail_with(std::move(cause), serving::text_or(*error, "message", "it says no reason"));
}

void StreamReader::fail_with(std::string cause, std::string error) {
  if (failed_) return;
  failed_ = true;
  result_.ok = false;
  result_.cause = std::move(cause);
  result_.error = std::move(error);
}

}  // namespace baton::bench
