#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <string>

namespace baton::log {
namespace {

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>(
        "baton", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    const char* level = std::getenv("BATON_LOG_LEVEL");
    made->set_level(level != nullptr ? spdlog::level::from_str(level) : spdlog::level::info);
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%L%$ baton: %v");
    return made;
  }();
  return *instance;
}

}  // namespace

void write(Level level, std::string_view text) {
  logger().log(to_spdlog(level), "{}", text);
}
bool enabled(Level level) {
  return logger().should_log(to_spdlog(level));
}
void set_name(std::string_view name) {
  logger().set_pattern("%Y-%m-%d %H:%M:%S.%e %^%L%$ " + std::string(name) + ": %v");
}

}  // namespace baton::log
