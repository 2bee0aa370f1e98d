#include "bench/plot/requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace baton::bench::plot {
namespace {

constexpr std::array<std::string_view, 4> kSides = {"client", "router", "prefill", "decode"};

// Microseconds are enough for the eye, and keep the page small.
Json rounded(std::optional<double> ms) {
  return ms ? Json(std::round(*ms * 1000) / 1000) : Json(nullptr);
}

// Clocks of two hosts differ: a span may begin before the run by a little. Null: it never ended.
std::optional<double> signed_ms(Fields& span, std::string_view key) {
  const Json* value = span.find(key);
  if (value == nullptr) return {};
  if (!value->is_number() || !std::isfinite(value->get<double>())) {
    span.complain(key, "is not a number");
    return {};
  }
  return value->get<double>();
}

Json read_span(Fields span) {
  const std::string side = span.need_text("side");
  const std::string name = span.need_text("name");
  const auto start = signed_ms(span, "start_ms");
  const auto end = signed_ms(span, "end_ms");
  if (!start) span.complain("start_ms", "is missing");
  if (std::ranges::find(kSides, side) == kSides.end()) {
    span.complain("side", "is none of client, router, prefill, decode");
  }
  if (start && end && *end < *start) {
    span.complain("end_ms", fmt::format("is {}, before start_ms {}", *end, *start));
  }
  return Json::array({side, name, rounded(start), rounded(end)});
}

// A transfer id may be a number: the page shows text.
std::string id_of(Fields& request) {
  const Json* id = request.find("id");
  if (id != nullptr && id->is_string()) return id->get<std::string>();
  if (id != nullptr && id->is_number()) return to_text(*id);
  request.complain("id", "is missing or neither text nor a number");
  return {};
}

Json read_request(Fields request, std::string& complaint) {
  Json out = {{"id", id_of(request)},
              {"arrival", rounded(request.number("arrival_ms"))},
              {"ttft", rounded(request.number("ttft_ms"))},
              {"tpot", rounded(request.number("tpot_ms"))},
              {"e2el", rounded(request.number("e2el_ms"))},
              {"second", rounded(request.number("second_token_ms"))},
              {"error", nullptr},
              {"spans", Json::array()}};
  if (const auto error = request.text("error")) out["error"] = *error;
  const Json* spans = request.find("spans");
  if (spans != nullptr && !spans->is_array()) request.complain("spans", "is not a list");
  if (spans == nullptr || !spans->is_array()) return out;
  for (std::size_t i = 0; i < spans->size(); ++i) {
    out["spans"].push_back(
        read_span(Fields(&(*spans)[i], request.path_of(fmt::format("spans[{}]", i)), complaint)));
  }
  return out;
}

double ttft_of(const Json& request) {
  const Json& value = request["ttft"];
  return value.is_number() ? value.get<double>() : 0;
}

}  // namespace

Json read_requests(Fields& baton, std::size_t requests_max, std::string& complaint) {
  const Json* list = baton.find("requests");
  if (list == nullptr) return Json::array();
  if (!list->is_array()) {
    baton.complain("requests", "is not a list");
    return Json::array();
  }
  std::vector<Json> all;
  for (std::size_t i = 0; i < list->size(); ++i) {
    all.push_back(read_request(
        Fields(&(*list)[i], baton.path_of(fmt::format("requests[{}]", i)), complaint), complaint));
  }
  std::ranges::sort(all, [](const Json& a, const Json& b) {
    if (a["error"].is_null() != b["error"].is_null()) return b["error"].is_null();
    return ttft_of(a) < ttft_of(b);
  });
  const auto failed = static_cast<std::size_t>(
      std::ranges::count_if(all, [](const Json& request) { return !request["error"].is_null(); }));
  if (all.size() <= requests_max) return all;
  Json kept = Json::array();
  for (std::size_t i = 0; i < std::min(failed, requests_max); ++i) kept.push_back(all[i]);
  const std::size_t room = requests_max - kept.size();
  const std::size_t fine = all.size() - failed;
  for (std::size_t i = 0; i < room; ++i) {
    const std::size_t rank = room == 1 ? fine - 1 : i * (fine - 1) / (room - 1);
    kept.push_back(all[failed + rank]);
  }
  return kept;
}

}  // namespace baton::bench::plot
