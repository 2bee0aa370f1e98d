// What `baton sim` does with its flags. 0: nothing found; 1: a checker complained, or a mark that
// was asked for was not reached; 2: the flags make no sense.
#pragma once

#include <cstdint>
#include <string>

namespace baton::sim {

struct SimOptions {
  std::string preset;  // "ci", "long" or empty
  std::int64_t seeds = -1;
  std::uint64_t first_seed = 1;
  std::int64_t deviations = -1;
  std::int64_t samples = -1;
  std::int64_t large_every = -1;
  bool no_pairs = false;
  std::uint32_t faults_max = 5;
  unsigned threads = 0;  // 0: one a core
  // One schedule.
  std::uint64_t seed = 0;
  bool large = false;
  std::string pair;  // "cancel D,crash P"
  std::string path;  // "0,0,2"
  std::uint64_t sample = 0;
  std::string pair_fabric = "shm";
  bool trace = false;
  // The report.
  bool json = false;
  std::string report_file;
};

int run_sim(const SimOptions& options);

}  // namespace baton::sim
