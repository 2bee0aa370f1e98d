#include "http/sse.h"

#include <fmt/format.h>

namespace baton::http {

std::string format_sse(std::string_view data) {
  return format_sse({}, data);
}

std::string format_sse(std::string_view event, std::string_view data) {
  std::string out;
  out.reserve(event.size() + data.size() + 24);
  if (!event.empty()) out.append("event: ").append(event).append("\n");
  for (;;) {
    const std::size_t end = data.find_first_of("\r\n");
    out.append("data: ").append(data.substr(0, end)).append("\n");
    if (end == std::string_view::npos) break;
    data.remove_prefix(data.substr(end).starts_with("\r\n") ? end + 2 : end + 1);
  }
  return out.append("\n");
}

Result<std::vector<SseEvent>> SseParser::push(std::string_view bytes) {
  std::vector<SseEvent> events;
  if (after_return_ && !bytes.empty()) {
    after_return_ = false;
    if (bytes.front() == '\n') bytes.remove_prefix(1);
  }
  while (!bytes.empty()) {
    const std::size_t end = bytes.find_first_of("\r\n");
    line_.append(bytes.substr(0, end));
    if (line_.size() + event_.data.size() > limit_) {
      return fail(Errc::kResourceExhausted, fmt::format("an event has more than {} bytes", limit_));
    }
    if (end == std::string_view::npos) break;
    const bool is_return = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    take_line(line_, events);
    line_.clear();
    if (!is_return) continue;
    if (bytes.empty()) {
      after_return_ = true;
    } else if (bytes.front() == '\n') {
      bytes.remove_prefix(1);
    }
  }
  return events;
}

void SseParser::take_line(std::string_view line, std::vector<SseEvent>& out) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (at_start_ && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  at_start_ = false;
  if (line.empty()) {
    if (has_data_) out.push_back(std::move(event_));
    event_ = {};
    has_data_ = false;
    return;
  }
  const std::size_t colon = line.find(':');
  const std::string_view field = line.substr(0, colon);
  std::string_view value = colon == std::string_view::npos ? "" : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (field == "data") {
    if (has_data_) event_.data.push_back('\n');
    event_.data.append(value);
    has_data_ = true;
  } else if (field == "event") {
    event_.event = value;
  }
}

}  // namespace baton::http
