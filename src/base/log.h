// One line a fact, to standard error: time, level, text. Logged once, by whoever first decides that
// it is one. Call from any thread; never once a block or once a token.
// BATON_LOG_LEVEL={debug,info,warning,error,off} sets the level.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace baton::log {

enum class Level { kDebug, kInfo, kWarning, kError };

void write(Level level, std::string_view text);
bool enabled(Level level);
void set_name(std::string_view name);  // shown in each line, e.g. "decode"; before threads start

template <typename... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kDebug))
    write(Level::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kInfo)) write(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kWarning))
    write(Level::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kError))
    write(Level::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace baton::log
