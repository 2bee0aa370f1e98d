// All results of one folder, and whether they may stand in one figure.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "baton/result.h"
#include "bench/plot/result_file.h"

namespace baton::bench::plot {

struct ResultSet {
  std::string label;                // as the folder was given
  std::vector<std::string> modes;   // in the order of the legend
  std::vector<ResultFile> results;  // by mode in that order, then by grid point
};

// Reads every file of the folder that has a result's name. `modes`: only these, in this order;
// empty: all. Refuses an empty folder, a mode that it lacks, and any file that is not what its name
// says.
Result<ResultSet> read_results(const std::filesystem::path& folder,
                               const std::vector<std::string>& modes, std::size_t requests_max);

// Modes of one folder are comparable if they ran the same grid of (qps, input_len, output_len,
// iteration), the same seeds, and the same settings. The message names what differs, and both.
Status check_comparable(const ResultSet& set);

// Two folders: the same modes and the same grid. Settings may differ (that can be the comparison).
Status check_comparable(const ResultSet& ours, const ResultSet& theirs);

// What two such folders set unlike, beyond what a source says of itself: "max_num_seqs", and the
// value of each.
struct UnlikeSetting {
  std::string name, ours, theirs;
};
std::vector<UnlikeSetting> unlike_settings(const ResultSet& ours, const ResultSet& theirs);

}  // namespace baton::bench::plot
