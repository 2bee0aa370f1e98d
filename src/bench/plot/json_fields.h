// Typed reading of a result file's fields. Heavy (nlohmann): for .cc files only.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "baton/result.h"

namespace baton::bench::plot {

using Json = nlohmann::json;

// "[json.exception...] " cut off; never throws. Broken UTF-8 is refused like any other fault.
Result<Json> parse_json(std::string_view text);

// Compact; what is not UTF-8 becomes U+FFFD.
std::string to_text(const Json& value);

// Reads members of one object and remembers the first that was not what it must be, so that a
// caller asks once at the end. Null and absent are the same: not measured. Lives no longer than the
// object and the complaint that it writes to.
class Fields {
 public:
  // `object` may be null: then every member is absent. `path` is "" or "baton.handover_ms".
  Fields(const Json* object, std::string path, std::string& complaint);

  std::optional<double> number(std::string_view key);  // finite, not negative
  std::optional<std::uint64_t> count(std::string_view key);
  std::optional<bool> flag(std::string_view key);
  std::optional<std::string> text(std::string_view key);
  Fields object(std::string_view key);

  // The same, and absent is a fault: the value is then zero or empty.
  double need_number(std::string_view key);
  std::uint64_t need_count(std::string_view key);
  std::string need_text(std::string_view key);
  bool need_flag(std::string_view key);

  bool present() const { return object_ != nullptr; }
  const Json* raw() const { return object_; }
  const Json* find(std::string_view key) const;
  std::string path_of(std::string_view key) const;
  void complain(std::string_view key, std::string_view what);

 private:
  const Json* object_;
  std::string path_;
  std::string* complaint_;
};

}  // namespace baton::bench::plot
