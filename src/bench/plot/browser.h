// Headless Chromium, started once for each question.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "baton/result.h"

namespace baton::bench::plot {

// `given` (--chromium), else BATON_CHROMIUM, else the first of Debian's and other usual names in
// PATH. A given one that is no program is an error, not a reason to look further.
Result<std::filesystem::path> find_browser(const std::string& given);

// Starts it without network services, with a fresh profile that is removed afterwards, and answers
// what it wrote to standard output. It and all its children are ended after `timeout`. Errors quote
// the end of its standard error. Calling thread waits.
Result<std::string> run_browser(const std::filesystem::path& browser,
                                const std::vector<std::string>& arguments,
                                std::chrono::seconds timeout);

}  // namespace baton::bench::plot
