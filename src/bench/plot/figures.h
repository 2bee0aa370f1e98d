// The figures as files, drawn by the page itself in headless Chromium.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "baton/result.h"
#include "bench/plot/page_data.h"

namespace baton::bench::plot {

struct FigureWish {
  View view;
  std::string y_axis = "linear";  // or "log"
  std::string theme = "light";    // or "dark"
  std::size_t panels = 1;         // they and the lines' names decide the height
  std::size_t series = 1;
};

// "ttft_mean", "goodput".
std::string figure_name(const View& view);

// Writes NAME.svg and NAME.png into `folder`; the PNG has twice the SVG's pixels each way.
Status draw_figure(const std::filesystem::path& browser, const std::filesystem::path& page,
                   const FigureWish& wish, const std::filesystem::path& folder);

// The SVG that the page left in its dumped document, and nothing else: text of result files may
// stand in that document, too. Its own function for the tests.
Result<std::string> svg_of(std::string_view dumped);

}  // namespace baton::bench::plot
