// What the page is given to draw, as JSON that can stand inside a <script> element.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bench/plot/metric.h"
#include "bench/plot/result_set.h"
#include "bench/plot/summary.h"

namespace baton::bench::plot {

struct View {
  Metric metric = Metric::kTtft;
  Stat stat = Stat::kMean;
};

// Everything but the time lines of single requests. `view` is what the page opens with.
std::string page_data(const std::vector<ResultSet>& sets, const Summary& summary, const View& view);

// JSON text with <, >, & and the line separators of JavaScript escaped, so that no text of a file
// can end the element that it stands in.
std::string for_script(std::string_view json);

}  // namespace baton::bench::plot
