#include "engine/timed/profile.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <variant>
#include <vector>

#include "base/printable.h"

namespace baton::engine::timed {
namespace {

using Json = nlohmann::json;

constexpr std::uint32_t kPatternWord = 8;  // bytes of the pattern's words

struct Text {
  std::string_view key;
  std::string Profile::* field;
};
struct Number {
  std::string_view key;
  std::variant<std::uint32_t Profile::*, double Profile::*> field;
  double least = 0;
  double most = 0;
};

constexpr std::size_t kTextBytesMax = 200;  // it is in every answer, line and metric
constexpr double kSecondsMax = 100;
constexpr double kRateMax = 1e15;

constexpr std::array kTexts{Text{"name", &Profile::name},
                            Text{"description", &Profile::description},
                            Text{"model", &Profile::model}};
const std::array kNumbers{
    Number{"num_layers", &Profile::num_layers, 1, 1024},
    Number{"num_kv_heads", &Profile::num_kv_heads, 1, 1024},
    Number{"head_dim", &Profile::head_dim, 1, 65536},
    Number{"tensor_parallel_size", &Profile::tensor_parallel_size, 1, 1024},
    Number{"kv_element_bytes", &Profile::kv_element_bytes, 1, 8},
    Number{"kv_regions_per_layer", &Profile::kv_regions_per_layer, 1, 2},
    Number{"block_size", &Profile::block_size, 1, 1024},
    Number{"kv_cache_tokens", &Profile::kv_cache_tokens, 1, 1e9},
    Number{"kv_bytes_scale", &Profile::kv_bytes_scale, 1, 65536},
    Number{"max_model_len", &Profile::max_model_len, 1, 1e8},
    Number{"max_num_seqs", &Profile::max_num_seqs, 1, 65536},
    Number{"max_num_batched_tokens", &Profile::max_num_batched_tokens, 1, 1e8},
    Number{"prefill_tokens_per_s", &Profile::prefill_tokens_per_s, 1, kRateMax},
    Number{"cached_prefill_step_s", &Profile::cached_prefill_step_s, 0, kSecondsMax},
    Number{"decode_step_s", &Profile::decode_step_s, 0, kSecondsMax},
    Number{"decode_per_sequence_s", &Profile::decode_per_sequence_s, 0, kSecondsMax},
    Number{"decode_per_context_token_s", &Profile::decode_per_context_token_s, 0, kSecondsMax},
    Number{"link_bytes_per_s", &Profile::link_bytes_per_s, 1, kRateMax},
    Number{"published_post_s", &Profile::published_post_s, 0, 0.1}};

tl::unexpected<Error> invalid(std::string message) {
  return fail(Errc::kInvalidArgument, std::move(message));
}

std::string shown(const Json* value) {
  constexpr std::size_t kLongest = 60;
  if (value == nullptr) return "missing";
  std::string text = value->dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

// Of two values of one key the parser would keep one and not say which.
Result<Json> parse_json(std::string_view text) {
  using Event = Json::parse_event_t;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  std::string twice;
  const auto look = [&](int, Event event, Json& value) {
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second) {
      twice = shown(&value);
    }
    return true;
  };
  try {
    Json file = Json::parse(text, look);
    if (twice.empty()) return file;
  } catch (const Json::exception& error) {
    return invalid(
        fmt::format("the profile is not JSON: {}", printable(error.what(), kTextBytesMax)));
  }
  return invalid(fmt::format("{} is there twice", twice));
}

const Json* find(const Json& object, std::string_view key) {
  const auto at = object.find(key);
  return at == object.end() ? nullptr : &*at;
}

bool is_number(std::string_view key) {
  return std::any_of(kNumbers.begin(), kNumbers.end(),
                     [&](const Number& number) { return number.key == key; });
}

Status read_text(const Json& file, const Text& text, Profile& out) {
  const Json* value = find(file, text.key);
  const std::string got = value != nullptr && value->is_string() ? value->get<std::string>() : "";
  if (got.empty() || printable(got, kTextBytesMax) != got) {
    return invalid(fmt::format("{} must be a text of 1 to {} bytes that can be printed, and is {}",
                               text.key, kTextBytesMax, shown(value)));
  }
  out.*text.field = got;
  return {};
}

Status read_number(const Json& file, const Number& number, Profile& out) {
  const Json* value = find(file, number.key);
  const bool whole = std::holds_alternative<std::uint32_t Profile::*>(number.field);
  const double got = value != nullptr && value->is_number()
                         ? value->get<double>()
                         : std::numeric_limits<double>::quiet_NaN();
  const bool fits = got >= number.least && got <= number.most && (!whole || got == std::floor(got));
  if (!fits) {
    return invalid(fmt::format("{} must be {} from {} to {}, and is {}", number.key,
                               whole ? "an integer" : "a number", number.least, number.most,
                               shown(value)));
  }
  if (whole) {
    out.*std::get<0>(number.field) = static_cast<std::uint32_t>(got);
  } else {
    out.*std::get<1>(number.field) = got;
  }
  return {};
}

Status check_sources(const Json& file) {
  const Json* sources = find(file, "sources");
  if (sources == nullptr || !sources->is_object()) {
    return invalid(fmt::format("sources must be an object, and is {}", shown(sources)));
  }
  for (const Number& number : kNumbers) {
    const Json* source = find(*sources, number.key);
    if (source == nullptr || !source->is_string() || source->get<std::string>().empty()) {
      return invalid(fmt::format("{} has no source: sources.{} must be a text, and is {}",
                                 number.key, number.key, shown(source)));
    }
  }
  for (const auto& [key, source] : sources->items()) {
    if (!is_number(key)) return invalid(fmt::format("sources.{} is the source of no number", key));
  }
  return {};
}

Status check_keys(const Json& file) {
  for (const auto& [key, value] : file.items()) {
    const bool text = std::any_of(kTexts.begin(), kTexts.end(),
                                  [&, &k = key](const Text& t) { return t.key == k; });
    if (!text && !is_number(key) && key != "sources") {
      return invalid(fmt::format("{} is no field of a profile", key));
    }
  }
  return {};
}

// Each rank has as many heads as the next, or each head as many ranks as the next.
bool divides(std::uint32_t heads, std::uint32_t ranks) {
  return heads % ranks == 0 || ranks % heads == 0;
}

Status check_together(const Profile& profile) {
  if (!divides(profile.num_kv_heads, profile.tensor_parallel_size)) {
    return invalid(fmt::format("num_kv_heads {} and tensor_parallel_size {} do not divide",
                               profile.num_kv_heads, profile.tensor_parallel_size));
  }
  if (profile.max_num_batched_tokens < profile.max_num_seqs) {
    return invalid(fmt::format("max_num_batched_tokens {} is smaller than max_num_seqs {}",
                               profile.max_num_batched_tokens, profile.max_num_seqs));
  }
  if (profile.kv_cache_tokens < profile.max_model_len) {
    return invalid(fmt::format("kv_cache_tokens {} is smaller than max_model_len {}",
                               profile.kv_cache_tokens, profile.max_model_len));
  }
  return check_scale(profile, profile.kv_bytes_scale);
}

}  // namespace

std::uint32_t token_bytes(const Profile& profile) {
  // Fewer heads than ranks: each rank keeps one.
  const std::uint32_t heads = std::max(1U, profile.num_kv_heads / profile.tensor_parallel_size);
  return heads * profile.head_dim * profile.kv_element_bytes;
}

std::vector<std::string> region_names(std::uint32_t layers, std::uint32_t regions_per_layer) {
  std::vector<std::string> names;
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    if (regions_per_layer == 1) {
      names.push_back(fmt::format("layer.{}", layer));
    } else {
      names.push_back(fmt::format("layer.{}.k", layer));
      names.push_back(fmt::format("layer.{}.v", layer));
    }
  }
  return names;
}

Status check_scale(const Profile& profile, std::uint32_t scale) {
  const std::uint32_t bytes = token_bytes(profile);
  if (scale > 0 && bytes % scale == 0 && bytes / scale % kPatternWord == 0) return {};
  return invalid(
      fmt::format("kv_bytes_scale is {}, and must divide the {} bytes that a token has in a region "
                  "into a multiple of {}",
                  scale, bytes, kPatternWord));
}

std::string hash_of(const Profile& profile) {
  std::string text;
  for (const Number& number : kNumbers) {
    const std::string value = std::visit(
        [&profile](auto field) { return fmt::format("{}", profile.*field); }, number.field);
    text += fmt::format("{}={}\n", number.key, value);
  }
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

Result<Profile> parse_profile(std::string_view text) {
  auto parsed = parse_json(text);
  if (!parsed) return tl::unexpected(parsed.error());
  const Json& file = *parsed;
  if (!file.is_object())
    return invalid(fmt::format("a profile is an object, not {}", shown(&file)));
  Profile profile;
  if (Status known = check_keys(file); !known) return tl::unexpected(known.error());
  for (const Text& field : kTexts) {
    if (Status read = read_text(file, field, profile); !read) return tl::unexpected(read.error());
  }
  for (const Number& field : kNumbers) {
    if (Status read = read_number(file, field, profile); !read) return tl::unexpected(read.error());
  }
  if (Status told = check_sources(file); !told) return tl::unexpected(told.error());
  if (Status fits = check_together(profile); !fits) return tl::unexpected(fits.error());
  return profile;
}

}  // namespace baton::engine::timed
