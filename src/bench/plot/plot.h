// `baton plot`: the results of a sweep as figures (SVG, PNG) and as one page that explains every
// point. Reads files and starts Chromium; needs no server and no network.
#pragma once

#include <string>
#include <vector>

namespace baton::bench::plot {

struct PlotOptions {
  std::string results_dir;
  std::string compare_dir;                      // "": none
  std::vector<std::string> metrics = {"ttft"};  // a figure each; the page opens with the first
  std::string stat = "mean";
  std::vector<std::string> modes;  // empty: all
  std::string out_dir;             // "": results_dir/figures
  std::string y_axis = "linear";   // of the figures, or "log"; the page has a switch
  std::string theme = "light";     // of the figures; the page follows the reader's system
  std::string chromium;            // "": BATON_CHROMIUM, or the one that is installed
  std::size_t requests = 200;      // time lines a result that the page carries
};

// 0: page and figures are written; 1: the results cannot be read or compared, or there is no uPlot
// or Chromium (the page is written without the latter); 2: wrong use. Says on standard output what
// it wrote, on standard error what is wrong.
int run_plot(const PlotOptions& options);

}  // namespace baton::bench::plot
