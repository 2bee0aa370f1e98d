// A good result file for tests, to be changed where a test wants it unlike.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/plot/result_file.h"

namespace baton::bench::plot::testing {

// TTFT 100 ms, TPOT 6, hand-over 20, goodput 7.5 a second, 4096 bytes, one request.
nlohmann::json result_json(const std::string& mode, const GridPoint& at);

// The same, parsed.
ResultFile result_file(const std::string& mode, const GridPoint& at);

}  // namespace baton::bench::plot::testing
