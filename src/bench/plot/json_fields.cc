#include "bench/plot/json_fields.h"

#include <fmt/format.h>

#include <cmath>

#include "bench/plot/text_file.h"

namespace baton::bench::plot {
namespace {

std::string shown(const Json& value) {
  constexpr std::size_t kShownMax = 60;
  std::string text = to_text(value);
  if (text.size() > kShownMax) text = text.substr(0, kShownMax) + "...";
  return printable(text);
}

}  // namespace

Result<Json> parse_json(std::string_view text) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    const std::string_view reason = error.what();
    const std::size_t tag = reason.find("] ");
    return fail(
        Errc::kCorrupt,
        "not JSON: " + printable(tag == std::string_view::npos ? reason : reason.substr(tag + 2)));
  }
}

std::string to_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Fields::Fields(const Json* object, std::string path, std::string& complaint)
    : object_(object), path_(std::move(path)), complaint_(&complaint) {
  if (object_ != nullptr && !object_->is_object()) {
    if (complaint_->empty()) {
      *complaint_ = fmt::format("field {} is {}, not an object",
                                path_.empty() ? "(top level)" : path_, shown(*object_));
    }
    object_ = nullptr;
  }
}

const Json* Fields::find(std::string_view key) const {
  if (object_ == nullptr) return nullptr;
  const auto it = object_->find(std::string(key));
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

std::string Fields::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

void Fields::complain(std::string_view key, std::string_view what) {
  if (complaint_->empty()) *complaint_ = fmt::format("field {} {}", path_of(key), what);
}

std::optional<double> Fields::number(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) return {};
  const double number = value->is_number() ? value->get<double>() : -1;
  if (!std::isfinite(number) || number < 0) {
    complain(key, fmt::format("is {}, not a number of 0 or more", shown(*value)));
    return {};
  }
  return number;
}

std::optional<std::uint64_t> Fields::count(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_number_unsigned()) {
    complain(key, fmt::format("is {}, not a whole number of 0 or more", shown(*value)));
    return {};
  }
  return value->get<std::uint64_t>();
}

std::optional<bool> Fields::flag(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_boolean()) {
    complain(key, fmt::format("is {}, not true or false", shown(*value)));
    return {};
  }
  return value->get<bool>();
}

std::optional<std::string> Fields::text(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_string()) {
    complain(key, fmt::format("is {}, not text", shown(*value)));
    return {};
  }
  return value->get<std::string>();
}

Fields Fields::object(std::string_view key) {
  return {find(key), path_of(key), *complaint_};
}

double Fields::need_number(std::string_view key) {
  const auto value = number(key);
  if (!value) complain(key, "is missing");
  return value.value_or(0);
}

std::uint64_t Fields::need_count(std::string_view key) {
  const auto value = count(key);
  if (!value) complain(key, "is missing");
  return value.value_or(0);
}

std::string Fields::need_text(std::string_view key) {
  auto value = text(key);
  if (!value) complain(key, "is missing");
  return std::move(value).value_or(std::string());
}

bool Fields::need_flag(std::string_view key) {
  const auto value = flag(key);
  if (!value) complain(key, "is missing");
  return value.value_or(false);
}

}  // namespace baton::bench::plot
