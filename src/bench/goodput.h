// A service level: what a request must keep to count as good.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "baton/result.h"

namespace baton::bench {

// Milliseconds; what is absent is not asked for.
struct Slo {
  std::optional<double> ttft, tpot, e2el;
  bool is_set() const { return ttft || tpot || e2el; }
};

// "ttft:200", "tpot:10", "e2el:3000".
Result<Slo> parse_goodput(std::span<const std::string> items);

// Of a request that ended well; milliseconds. One whose answer has a single token has a TPOT of 0,
// as with `vllm bench serve`.
bool is_good(const Slo& slo, double ttft, double tpot, double e2el);

}  // namespace baton::bench
