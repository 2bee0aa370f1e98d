// The page as one file: the template with its style, its scripts, uPlot and the data put in. It
// asks the network for nothing, and its own policy forbids it to.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "baton/result.h"
#include "bench/plot/summary.h"

namespace baton::bench::plot {

// uPlot as npm installs it.
struct Uplot {
  std::string script, style;
};

// From BATON_UPLOT (the folder with uPlot.iife.min.js) or where tools/setup puts it.
std::filesystem::path uplot_folder();
Result<Uplot> read_uplot(const std::filesystem::path& folder);

// `data` is page_data()'s. The results' requests_json become elements of their own, which the page
// parses when a point is chosen.
std::string make_page(const Uplot& uplot, std::string_view data, const Summary& summary);

}  // namespace baton::bench::plot
