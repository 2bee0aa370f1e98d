#include "serving/json.h"

#include <fmt/format.h>

namespace baton::serving {
namespace {

constexpr int kDepthMax = 64;

// How deep brackets nest outside of strings; good enough for text that is not JSON, too.
int nesting(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

// nlohmann's message without its "[json.exception.parse_error.101]" tag.
std::string reason(const std::exception& error) {
  const std::string_view text = error.what();
  const std::size_t end = text.find("] ");
  return std::string(end == std::string_view::npos ? text : text.substr(end + 2));
}

}  // namespace

Result<Json> parse_json(std::string_view text) {
  if (const int depth = nesting(text); depth > kDepthMax) {
    return fail(Errc::kInvalidArgument,
                fmt::format("JSON nests {} deep, and at most {} is read", depth, kDepthMax));
  }
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    return fail(Errc::kInvalidArgument, "invalid JSON: " + reason(error));
  }
}

std::string to_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

const Json* find(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::string text_or(const Json& object, std::string_view key, std::string_view fallback) {
  const Json* value = find(object, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string(fallback);
}

std::uint64_t uint_or(const Json& object, std::string_view key, std::uint64_t fallback) {
  const Json* value = find(object, key);
  return value != nullptr && value->is_number_unsigned() ? value->get<std::uint64_t>() : fallback;
}

std::string shown(const Json& value) {
  constexpr std::size_t kShownMax = 80;
  std::string text = to_text(value);
  if (text.size() > kShownMax) text = text.substr(0, kShownMax) + "...";
  return text;
}

}  // namespace baton::serving
