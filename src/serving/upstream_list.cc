#include "serving/upstream_list.h"

#include <fmt/format.h>

#include <charconv>

#include "serving/json.h"

namespace baton::serving {
namespace {

std::uint64_t hex_in(const std::string& text) {
  std::uint64_t value = 0;
  (void)std::from_chars(text.data(), text.data() + text.size(), value, 16);  // 0: no such number
  return value;
}

}  // namespace

std::string upstreams_body(std::span<const UpstreamPool::Snapshot> upstreams) {
  Json list = Json::array();
  for (const UpstreamPool::Snapshot& one : upstreams) {
    Json entry = {{"stage", to_string(one.stage)},
                  {"url", one.url},
                  {"up", one.up},
                  {"reason", one.reason},
                  {"engine_id", one.info.engine_id},
                  {"incarnation", fmt::format("{:016x}", one.info.incarnation)}};
    if (!one.info.emulated.empty()) entry["emulated"] = one.info.emulated;
    list.push_back(std::move(entry));
  }
  return to_text(Json{{"upstreams", std::move(list)}});
}

Result<std::vector<UpstreamEntry>> parse_upstreams(std::string_view body) {
  const Result<Json> parsed = parse_json(body);
  const Json* list = parsed && parsed->is_object() ? find(*parsed, "upstreams") : nullptr;
  if (list == nullptr || !list->is_array()) {
    return fail(Errc::kInvalidArgument, "the body has no list of upstreams");
  }
  std::vector<UpstreamEntry> out;
  for (const Json& item : *list) {
    if (out.size() == kInfoListMax) break;
    if (!item.is_object()) continue;
    UpstreamEntry& entry = out.emplace_back();
    const bool decodes = text_or(item, "stage", "") == to_string(Stage::kDecode);
    entry.stage = decodes ? Stage::kDecode : Stage::kPrefill;
    entry.url = text_or(item, "url", "");
    const Json* up = find(item, "up");
    entry.up = up != nullptr && up->is_boolean() && up->get<bool>();
    entry.reason = text_or(item, "reason", "");
    entry.engine_id = text_or(item, "engine_id", "");
    entry.incarnation = hex_in(text_or(item, "incarnation", ""));
  }
  return out;
}

}  // namespace baton::serving
