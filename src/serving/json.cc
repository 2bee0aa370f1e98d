#include "serving/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace baton::serving {
namespace {

constexpr int kDepthMax = 64;
// Objects keep the order of their members and so look each one up by walking: the time to read one
// grows with the square of their number.
constexpr std::size_t kMembersMax = 256;

struct Shape {
  int depth = 0;            // how deep brackets nest
  std::size_t members = 0;  // of the object that has most
};

// Only what is outside of strings counts; good enough for text that is not JSON, too.
Shape shape_of(std::string_view text) {
  Shape shape;
  std::array<std::size_t, kDepthMax + 1> members{};  // of the open objects, by depth
  int depth = 0;
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
      shape.depth = std::max(shape.depth, ++depth);
      if (depth >= 0 && depth <= kDepthMax) members[static_cast<std::size_t>(depth)] = 0;
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ':' && depth >= 0 && depth <= kDepthMax) {
      shape.members = std::max(shape.members, ++members[static_cast<std::size_t>(depth)]);
    }
  }
  return shape;
}

// nlohmann's message without its "[json.exception.parse_error.101]" tag.
std::string reason(const std::exception& error) {
  const std::string_view text = error.what();
  const std::size_t end = text.find("] ");
  constexpr std::size_t kMost = 300;  // it quotes what it could not read
  const std::string_view words = end == std::string_view::npos ? text : text.substr(end + 2);
  return std::string(words.substr(0, kMost)) + (words.size() > kMost ? "..." : "");
}

}  // namespace

Result<Json> parse_json(std::string_view text) {
  const Shape shape = shape_of(text);
  if (shape.depth > kDepthMax) {
    return fail(Errc::kInvalidArgument,
                fmt::format("JSON nests {} deep, and at most {} is read", shape.depth, kDepthMax));
  }
  if (shape.members > kMembersMax) {
    return fail(Errc::kInvalidArgument,
                fmt::format("a JSON object has {} members, and at most {} are read", shape.members,
                            kMembersMax));
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

std::string with_member(std::string object, std::string_view name, std::string_view json) {
  if (json.empty()) return object;
  while (!object.empty() && object.back() != '}') object.pop_back();
  if (object.empty()) return object;
  object.pop_back();
  const std::size_t last = object.find_last_not_of(" \t\r\n");
  const bool is_first = last != std::string::npos && object[last] == '{';
  object += fmt::format("{}\"{}\":{}}}", is_first ? "" : ",", name, json);
  return object;
}

std::string shown(const Json& value) {
  constexpr std::size_t kShownMax = 80;
  std::string text = to_text(value);
  if (text.size() > kShownMax) text = text.substr(0, kShownMax) + "...";
  return text;
}

}  // namespace baton::serving
