#include "serving/trace_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/random.h"

namespace baton::serving {
namespace {

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_zero(std::string_view text) {
  return text.find_first_not_of('0') == std::string_view::npos;
}

std::string random_hex16() {
  std::uint64_t value = 0;
  while (value == 0) value = random_u64();
  return fmt::format("{:016x}", value);
}

// version "-" trace-id "-" parent-id "-" flags. A version above 00 may be longer, behind a dash.
std::optional<TraceContext> read(std::string_view text) {
  constexpr std::size_t kLength = 55;
  if (text.size() < kLength || text[2] != '-' || text[35] != '-' || text[52] != '-') return {};
  const std::string_view version = text.substr(0, 2);
  if (!is_hex(version) || version == "ff") return {};
  const bool longer = text.size() > kLength;
  if (longer && (version == "00" || text[kLength] != '-')) return {};
  TraceContext out;
  out.trace_id = text.substr(3, 32);
  out.parent = text.substr(36, 16);
  out.flags = text.substr(53, 2);
  if (!is_hex(out.trace_id) || is_zero(out.trace_id)) return {};
  if (!is_hex(out.parent) || is_zero(out.parent)) return {};
  if (!is_hex(out.flags)) return {};
  return out;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::size_t count(const http::Headers& headers, std::string_view name) {
  const auto same = [name](const auto& field) {
    return http::Headers{{field.first, ""}}.find(name).has_value();
  };
  return static_cast<std::size_t>(std::count_if(headers.begin(), headers.end(), same));
}

}  // namespace

TraceContext take_trace(const http::Headers& headers) {
  std::optional<TraceContext> given;
  if (count(headers, kTraceHeader) == 1) given = read(trimmed(headers.get(kTraceHeader)));
  TraceContext out = given.value_or(TraceContext{});
  constexpr std::size_t kStateMax = 512;  // what every carrier must pass on
  const std::string_view state = headers.get(kTraceStateHeader);
  if (given && state.size() <= kStateMax) out.state = state;
  if (!given) out.trace_id = random_hex16() + random_hex16();
  out.span_id = random_hex16();
  return out;
}

TraceContext child_of(const TraceContext& parent) {
  TraceContext out = parent;
  out.parent = parent.span_id;
  out.span_id = random_hex16();
  return out;
}

void add_trace(const TraceContext& trace, http::Headers& headers) {
  headers.add(std::string(kTraceHeader), trace.header());
  if (!trace.state.empty()) headers.add(std::string(kTraceStateHeader), trace.state);
}

}  // namespace baton::serving
