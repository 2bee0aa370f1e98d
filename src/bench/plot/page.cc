#include "bench/plot/page.h"

#include <fmt/format.h>

#include <cstdlib>
#include <map>

#include "bench/plot/page_data.h"
#include "bench/plot/page_sources.h"
#include "bench/plot/text_file.h"

namespace baton::bench::plot {
namespace {

constexpr std::size_t kUplotBytesMax = std::size_t{4} << 20;

using Parts = std::map<std::string_view, std::string_view>;

// Puts each part in place of its {{name}}, in one pass: what was put in is not looked at again, so
// that data which holds "{{style}}" stays what it is.
std::string fill(std::string_view page, const Parts& parts) {
  std::string out;
  while (true) {
    const std::size_t start = page.find("{{");
    const std::size_t end = page.find("}}", start);
    if (start == std::string_view::npos || end == std::string_view::npos) break;
    const auto part = parts.find(page.substr(start + 2, end - start - 2));
    out += page.substr(0, start);
    if (part != parts.end()) out += part->second;
    page.remove_prefix(end + 2);
  }
  out += page;
  return out;
}

// Elements that the page looks up by the number of the result.
std::string request_elements(const Summary& summary) {
  std::string out;
  for (std::size_t i = 0; i < summary.results.size(); ++i) {
    out += fmt::format("<script type=\"application/json\" id=\"requests-{}\">", i);
    out += for_script(summary.results[i]->requests_json);
    out += "</script>\n";
  }
  return out;
}

Result<std::string> read_part(const std::filesystem::path& folder, const char* name,
                              std::string_view closing_tag) {
  auto text = read_file(folder / name, kUplotBytesMax);
  if (!text) {
    return fail(text.error().code,
                fmt::format("uPlot is needed to make the page: {}; tools/setup installs it, or "
                            "BATON_UPLOT names the folder that holds uPlot.iife.min.js",
                            text.error().message));
  }
  if (text->find(closing_tag) != std::string::npos) {
    return fail(Errc::kCorrupt, fmt::format("{}: holds {}, and so cannot be put into a page",
                                            printable((folder / name).string()), closing_tag));
  }
  return text;
}

}  // namespace

std::filesystem::path uplot_folder() {
  const char* given = std::getenv("BATON_UPLOT");
  return given != nullptr && *given != '\0' ? given : BATON_UPLOT_FOLDER;
}

Result<Uplot> read_uplot(const std::filesystem::path& folder) {
  auto script = read_part(folder, "uPlot.iife.min.js", "</script");
  if (!script) return tl::unexpected(script.error());
  auto style = read_part(folder, "uPlot.min.css", "</style");
  if (!style) return tl::unexpected(style.error());
  return Uplot{std::move(*script), std::move(*style)};
}

std::string make_page(const Uplot& uplot, std::string_view data, const Summary& summary) {
  const std::string requests = request_elements(summary);
  return fill(kPageHtml, {{"uplot.css", uplot.style},
                          {"page.css", kPageCss},
                          {"uplot.js", uplot.script},
                          {"data", data},
                          {"requests", requests},
                          {"scales.js", kScalesJs},
                          {"painter.js", kPainterJs},
                          {"figure.js", kFigureJs},
                          {"detail.js", kDetailJs},
                          {"page.js", kPageJs}});
}

}  // namespace baton::bench::plot
