// Results put together for drawing: iterations of one grid point averaged, panels and lines named.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "bench/plot/metric.h"
#include "bench/plot/result_set.h"

namespace baton::bench::plot {

// Over the iterations that count; `n` of them had a value.
struct Average {
  double mean = 0, min = 0, max = 0;
  std::size_t n = 0;
};

struct Panel {
  double qps = 0;
  std::uint64_t output_len = 0;
};

struct Series {
  std::string mode;
  std::size_t source = 0;  // index of the folder
};

// One grid point of one series, all iterations.
struct Group {
  std::size_t series = 0;
  std::size_t panel = 0;
  std::uint64_t input_len = 0;
  std::vector<std::size_t> results;  // indices into Summary::results
};

struct Summary {
  std::vector<const ResultFile*> results;  // of all folders, in order
  std::vector<std::size_t> group_of;       // of each result
  std::vector<Panel> panels;               // by output length, then rate
  std::vector<Series> series;
  std::vector<std::uint64_t> input_lens;
  std::vector<Group> groups;
};

// The sets must outlive the summary.
Summary summarise(const std::vector<ResultSet>& sets);

// Void results are left out; nothing if no result of the group counts and has the value.
std::optional<Average> average(const Summary& summary, const Group& group, Metric metric,
                               Stat stat);

// Whether any result, void or not, has it.
bool has_values(const Summary& summary, Metric metric, Stat stat);

}  // namespace baton::bench::plot
