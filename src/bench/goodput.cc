#include "bench/goodput.h"

#include <fmt/format.h>

#include "bench/summary.h"

namespace baton::bench {

Result<Slo> parse_goodput(std::span<const std::string> items) {
  Slo slo;
  for (const std::string& item : items) {
    const std::size_t colon = item.find(':');
    const std::string name = item.substr(0, colon);
    const std::optional<double> value =
        colon == std::string::npos ? std::nullopt : to_number(item.substr(colon + 1));
    std::optional<double>* target = name == "ttft"   ? &slo.ttft
                                    : name == "tpot" ? &slo.tpot
                                    : name == "e2el" ? &slo.e2el
                                                     : nullptr;
    if (target == nullptr || !value || *value < 0) {
      return fail(Errc::kInvalidArgument,
                  fmt::format("--goodput must be ttft:MS, tpot:MS or e2el:MS, and is '{}'", item));
    }
    *target = value;
  }
  return slo;
}

bool is_good(const Slo& slo, double ttft, double tpot, double e2el) {
  return (!slo.ttft || ttft <= *slo.ttft) && (!slo.tpot || tpot <= *slo.tpot) &&
         (!slo.e2el || e2el <= *slo.e2el);
}

}  // namespace baton::bench
