// The files of page/, embedded when Baton is built.
#pragma once

#include <string_view>

namespace baton::bench::plot {

extern const std::string_view kPageHtml;
extern const std::string_view kPageCss;
extern const std::string_view kScalesJs;
extern const std::string_view kPainterJs;
extern const std::string_view kFigureJs;
extern const std::string_view kDetailJs;
extern const std::string_view kPageJs;

}  // namespace baton::bench::plot
