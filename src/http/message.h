// What a server is asked and a client is answered, without a word of Boost.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baton::http {

// Header fields in the order in which they came. Names compare without regard to case.
class Headers {
 public:
  Headers() = default;
  Headers(std::initializer_list<std::pair<std::string, std::string>> fields) : fields_(fields) {}

  void add(std::string name, std::string value) {
    fields_.emplace_back(std::move(name), std::move(value));
  }
  // The first field of that name.
  std::optional<std::string_view> find(std::string_view name) const;
  // The first field's value, or "".
  std::string_view get(std::string_view name) const { return find(name).value_or(""); }

  auto begin() const { return fields_.begin(); }
  auto end() const { return fields_.end(); }
  std::size_t size() const { return fields_.size(); }

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

struct Request {
  std::string method;  // "GET", as sent
  std::string path;    // target up to '?', percent signs left alone
  std::string query;   // after '?', without it
  Headers headers;     // "traceparent" is found here like any other
  std::string body;    // whole
  std::string peer;    // "address:port" of the client
};

// "Not Found" for 404; "" for a number that has no name.
std::string_view reason_phrase(int status);

}  // namespace baton::http
