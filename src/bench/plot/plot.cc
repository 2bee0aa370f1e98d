#include "bench/plot/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "bench/plot/browser.h"
#include "bench/plot/figures.h"
#include "bench/plot/page.h"
#include "bench/plot/page_data.h"
#include "bench/plot/result_set.h"
#include "bench/plot/summary.h"
#include "bench/plot/text_file.h"

namespace baton::bench::plot {
namespace fs = std::filesystem;
namespace {

constexpr int kDone = 0;
constexpr int kTrouble = 1;
constexpr int kUsage = 2;
constexpr char kPageName[] = "plot.html";

int complain(int exit_code, const std::string& text) {
  std::fprintf(stderr, "baton plot: %s\n", text.c_str());
  return exit_code;
}

template <typename T>
bool has_twice(std::vector<T> values) {
  std::ranges::sort(values);
  return std::ranges::adjacent_find(values) != values.end();
}

// What the command line's own checks let through.
Result<std::vector<View>> views_of(const PlotOptions& options) {
  const auto stat = stat_named(options.stat);
  if (!stat) {
    return fail(Errc::kInvalidArgument, fmt::format("--stat: {} is none of mean, median, p90, p99",
                                                    printable(options.stat)));
  }
  std::vector<View> views;
  for (const std::string& name : options.metrics) {
    const auto metric = metric_named(name);
    if (!metric) {
      return fail(Errc::kInvalidArgument,
                  fmt::format("--metric: {} is none of ttft, tpot, second-token, goodput, handover",
                              printable(name)));
    }
    views.push_back({*metric, *stat});
  }
  if (views.empty()) return fail(Errc::kInvalidArgument, "--metric: none given");
  if (options.y_axis != "linear" && options.y_axis != "log") {
    return fail(Errc::kInvalidArgument,
                fmt::format("--y-axis: {} is neither linear nor log", printable(options.y_axis)));
  }
  if (options.theme != "light" && options.theme != "dark") {
    return fail(Errc::kInvalidArgument,
                fmt::format("--theme: {} is neither light nor dark", printable(options.theme)));
  }
  if (has_twice(options.metrics) || has_twice(options.modes)) {
    return fail(Errc::kInvalidArgument, "--metric and --modes name each only once");
  }
  return views;
}

Result<std::vector<ResultSet>> read_sets(const PlotOptions& options) {
  std::vector<ResultSet> sets;
  std::vector<std::string> folders = {options.results_dir};
  if (!options.compare_dir.empty()) folders.push_back(options.compare_dir);
  for (const std::string& folder : folders) {
    auto set = read_results(folder, options.modes, options.requests);
    if (!set) return tl::unexpected(set.error());
    if (const Status fit = check_comparable(*set); !fit) return tl::unexpected(fit.error());
    sets.push_back(std::move(*set));
  }
  if (sets.size() == 2) {
    if (const Status fit = check_comparable(sets[0], sets[1]); !fit) {
      return tl::unexpected(fit.error());
    }
  }
  return sets;
}

Status check_values(const Summary& summary, const std::vector<View>& views) {
  for (const View& view : views) {
    if (has_values(summary, view.metric, view.stat)) continue;
    return fail(Errc::kNotFound, fmt::format("no result has {} {} (field {})", name_of(view.stat),
                                             name_of(view.metric), field_of(view.metric)));
  }
  return {};
}

Status write_page(const std::vector<ResultSet>& sets, const Summary& summary, const View& view,
                  const fs::path& path) {
  const auto uplot = read_uplot(uplot_folder());
  if (!uplot) return tl::unexpected(uplot.error());
  return write_file(path, make_page(*uplot, page_data(sets, summary, view), summary));
}

void say_written(const Summary& summary, const fs::path& path) {
  const auto voids = std::ranges::count_if(
      summary.results, [](const ResultFile* result) { return !result->void_reason.empty(); });
  fmt::print("{}: {} results, {} of them void\n", printable(path.string()), summary.results.size(),
             voids);
}

int draw_figures(const PlotOptions& options, const std::vector<View>& views, const Summary& summary,
                 const fs::path& page, const fs::path& folder) {
  const auto browser = find_browser(options.chromium);
  if (!browser) {
    return complain(kTrouble, "the page is written, its SVG and PNG figures are not: " +
                                  browser.error().message);
  }
  for (const View& view : views) {
    const Status drawn = draw_figure(
        *browser, page,
        {view, options.y_axis, options.theme, summary.panels.size(), summary.series.size()},
        folder);
    if (!drawn) return complain(kTrouble, drawn.error().message);
    const std::string name = (folder / figure_name(view)).string();
    fmt::print("{}.svg, .png\n", printable(name));
  }
  return kDone;
}

}  // namespace

int run_plot(const PlotOptions& options) {
  const auto views = views_of(options);
  if (!views) return complain(kUsage, views.error().message);
  const auto sets = read_sets(options);
  if (!sets) return complain(kTrouble, sets.error().message);
  const Summary summary = summarise(*sets);
  if (const Status there = check_values(summary, *views); !there) {
    return complain(kTrouble, there.error().message);
  }
  const fs::path folder = options.out_dir.empty() ? fs::path(options.results_dir) / "figures"
                                                  : fs::path(options.out_dir);
  const fs::path page = folder / kPageName;
  if (const Status written = write_page(*sets, summary, views->front(), page); !written) {
    return complain(kTrouble, written.error().message);
  }
  say_written(summary, page);
  return draw_figures(options, *views, summary, page, folder);
}

}  // namespace baton::bench::plot
