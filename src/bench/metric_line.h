// One line of a Prometheus text page.
#pragma once

#include <string>
#include <string_view>

namespace baton::bench {

// The value of a label in `name{a="x",b="y"} 1`; "" without it.
std::string metric_label(std::string_view line, std::string_view name);

}  // namespace baton::bench
