#include "bench/plot/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "bench/plot/browser.h"
#include "bench/plot/text_file.h"

namespace baton::bench::plot {
namespace fs = std::filesystem;
namespace {

// CSS pixels, as in page/figure.js; as wide as a blog's column on a screen of two pixels each.
constexpr std::size_t kWidth = 1200;
constexpr std::size_t kHeadHeight = 132;
constexpr std::size_t kRowHeight = 340;
constexpr std::size_t kFootHeight = 34;
constexpr std::size_t kPanelsARow = 4;
constexpr std::size_t kNamesARow = 5;
constexpr std::size_t kNamesHeight = 22;
constexpr int kScale = 2;
constexpr std::chrono::seconds kPatience{120};  // it takes two; a busy machine far longer

// The page puts the SVG there as base64: no text of the figure can look like the end of it.
constexpr std::string_view kOpen = "<pre id=\"figure-base64\">";
constexpr std::string_view kClose = "</pre>";

Result<std::string> decode_base64(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string out;
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return fail(Errc::kCorrupt, "the figure is no base64");
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    held += 6;
    if (held < 8) continue;
    held -= 8;
    out += static_cast<char>(bits >> held & 0xFF);
  }
  return out;
}

// A path as it stands in a URL.
std::string file_url(const fs::path& path) {
  std::string out = "file://";
  for (const char c : fs::absolute(path).string()) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = byte < 0x80 && (std::isalnum(byte) != 0 ||
                                       std::string_view("/-_.~").find(c) != std::string_view::npos);
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return out;
}

std::size_t height_of(const FigureWish& wish) {
  const std::size_t rows = (wish.panels + kPanelsARow - 1) / kPanelsARow;
  const std::size_t more_names = (std::max<std::size_t>(wish.series, 1) - 1) / kNamesARow;
  return kHeadHeight + more_names * kNamesHeight + rows * kRowHeight + kFootHeight;
}

}  // namespace

std::string figure_name(const View& view) {
  if (view.metric == Metric::kGoodput) return std::string(name_of(view.metric));
  return fmt::format("{}_{}", name_of(view.metric), name_of(view.stat));
}

Result<std::string> svg_of(std::string_view dumped) {
  const std::size_t open = dumped.find(kOpen);
  if (open == std::string_view::npos) {
    return fail(Errc::kInternal, "the page drew no figure: open it, and see its console");
  }
  const std::size_t start = open + kOpen.size();
  const std::size_t end = dumped.find(kClose, start);
  if (end == std::string_view::npos) return fail(Errc::kCorrupt, "the figure has no end");
  return decode_base64(dumped.substr(start, end - start));
}

Status draw_figure(const fs::path& browser, const fs::path& page, const FigureWish& wish,
                   const fs::path& folder) {
  const std::size_t height = height_of(wish);
  const fs::path png = fs::absolute(folder / (figure_name(wish.view) + ".png"));
  // Chromium that cannot write its picture ends well: one of an earlier run must not pass for it.
  std::error_code error;
  fs::remove(png, error);
  if (error) {
    return fail(Errc::kIo, fmt::format("{}: {}", printable(png.string()), error.message()));
  }
  const auto dumped =
      run_browser(browser,
                  {fmt::format("--window-size={},{}", kWidth, height),
                   fmt::format("--force-device-scale-factor={}", kScale),
                   "--screenshot=" + png.string(), "--dump-dom",
                   fmt::format("{}#figure={}&stat={}&y={}&theme={}&width={}&height={}",
                               file_url(page), name_of(wish.view.metric), name_of(wish.view.stat),
                               wish.y_axis, wish.theme, kWidth, height)},
                  kPatience);
  if (!dumped) return tl::unexpected(dumped.error());
  const auto svg = svg_of(*dumped);
  if (!svg) return tl::unexpected(svg.error());
  if (!fs::is_regular_file(png, error)) {
    return fail(Errc::kIo, fmt::format("{}: Chromium wrote no picture", printable(png.string())));
  }
  return write_file(folder / (figure_name(wish.view) + ".svg"), *svg);
}

}  // namespace baton::bench::plot
