#include "serving/http_names.h"

#include <fmt/format.h>

#include <algorithm>

#include "serving/answers.h"

namespace baton::serving {

std::string request_name(const http::Headers& headers) {
  const std::string_view given = headers.get(kRequestIdHeader);
  const bool plain = std::all_of(given.begin(), given.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.';
  });
  constexpr std::size_t kLongest = 128;
  if (!given.empty() && given.size() <= kLongest && plain) return std::string(given);
  return TransferId::random().to_string();
}

std::string answer_id(Endpoint endpoint, std::string_view name) {
  return fmt::format("{}-{}", endpoint == Endpoint::kChat ? "chatcmpl" : "cmpl", name);
}

void wrong_method(http::ResponseWriter& writer, const http::Request& request,
                  std::string_view wanted) {
  const auto error =
      refuse(405, fmt::format("{} takes {}, got {}", request.path, wanted, request.method));
  respond_error(writer, error.value());
}

void not_found(http::ResponseWriter& writer, const http::Request& request) {
  const auto error = refuse(404, fmt::format("no such path: {} {}", request.method, request.path));
  respond_error(writer, error.value());
}

}  // namespace baton::serving
