#include "base/nearest.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace baton {
namespace {

// Letters to add, drop or change (Levenshtein), row by row.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest_word(std::string_view word, std::span<const std::string> known) {
  std::string best;
  // Half of it may be wrong; beyond that a guess says nothing. The dashes of a flag are always
  // right.
  const std::size_t dashes = std::min(word.find_first_not_of('-'), word.size());
  std::size_t least = std::max<std::size_t>((word.size() - dashes) / 2, 1) + 1;
  for (const std::string& candidate : known) {
    const std::size_t d = distance(word, candidate);
    if (d >= least) continue;
    least = d;
    best = candidate;
  }
  return best;
}

}  // namespace baton
