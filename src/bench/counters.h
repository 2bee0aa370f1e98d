// What an instance's /metrics says about the limits of an emulated run; absent where it says
// nothing, as a real engine does.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace baton::bench {

struct Counters {
  std::string profile;                     // "" unless it is emulated
  std::optional<double> scale, link_rate;  // bytes are divided by; bytes a second, after scaling
  // Since the instance began; seconds but for the last two.
  std::optional<double> step_time, overrun_time, late_time, link_busy, link_lost, fill_time,
      check_time, kv_faults, posting_timeouts;
};

Counters parse_counters(std::string_view metrics_page);

// What happened between two pages of the same instance. What the first one does not say, or says
// more of (it began anew in between), is not known: its whole life is not the run's.
Counters since(const Counters& before, const Counters& after);

// Of two instances together.
Counters together(const Counters& a, const Counters& b);

// since(), of all instances together; by their URLs. `step_time` is known only where each of them
// told its own: without it nobody can say whether waits ended in time.
Counters gained(const std::map<std::string, Counters>& before,
                const std::map<std::string, Counters>& after);

// Why figures of so many seconds with these counters are not those of the profile: "" if they are.
std::string emulation_trouble(const Counters& counters, double run_seconds);

}  // namespace baton::bench
