// JSON for the few .cc files that read or write it. Heavy: never include this from a header.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "baton/result.h"

namespace baton::serving {

using Json = nlohmann::ordered_json;

// Refuses what is not JSON (the message says where), what nests deeper than 64, so that nothing
// that walks the value can run out of stack, and an object of more than 256 members, so that
// reading it takes no longer than its length warrants.
Result<Json> parse_json(std::string_view text);

// Compact. Broken UTF-8 becomes U+FFFD, never an exception.
std::string to_text(const Json& value);

// A member of an object; null pointer if absent or JSON's null.
const Json* find(const Json& object, std::string_view key);

// A text member, or the fallback if it is absent or of another type.
std::string text_or(const Json& object, std::string_view key, std::string_view fallback);

// A non-negative integer member, or the fallback.
std::uint64_t uint_or(const Json& object, std::string_view key, std::uint64_t fallback);

// An object's text with one more member, whose value is a JSON text; the text as it is if the
// value is empty. For values that are passed on as they came, unread.
std::string with_member(std::string object, std::string_view name, std::string_view json);

// For messages: the value as JSON, cut to a length that fits a line.
std::string shown(const Json& value);

}  // namespace baton::serving
