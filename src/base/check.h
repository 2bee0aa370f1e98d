// BATON_CHECK: a rule of the program itself. Always on, prints what failed and ends the process: a
// broken invariant of the hand-over must never become a wrong token. Never used on anything that a
// peer, a client or a file sent.
#pragma once

#include <fmt/format.h>

#include <string>

namespace baton {

[[noreturn]] void check_failed(const char* file, int line, const char* expression,
                               const std::string& message);

}  // namespace baton

#define BATON_CHECK(condition, ...)                                       \
  do {                                                                    \
    if (!(condition)) [[unlikely]]                                        \
      ::baton::check_failed(__FILE__, __LINE__, #condition,               \
                            ::baton::detail::check_message(__VA_ARGS__)); \
  } while (false)

namespace baton::detail {
inline std::string check_message() {
  return {};
}
template <typename... Args>
std::string check_message(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}
}  // namespace baton::detail
