// Many schedules on all cores: every pair of events exhausted, sampled walks beyond that bound, and
// random worlds by seed. Counts what was reached and keeps what failed, each with the command that
// replays it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/journal.h"
#include "sim/pair_run.h"

namespace baton::sim {

struct CampaignOptions {
  bool pairs = true;
  std::optional<std::pair<PairEvent, PairEvent>> only_pair;
  std::uint32_t deviations = 0;  // of each exhausted schedule from first-due-first
  std::uint32_t samples = 0;     // random walks of each pair, with any number of deviations
  std::uint64_t first_seed = 1;
  std::uint64_t seeds = 0;
  std::uint32_t large_every = 100;  // one seed of so many is a large world; 0: none
  unsigned threads = 2;
  std::uint32_t faults_max = 5;  // stops after so many
};

struct PairCount {
  PairCase pair;
  std::uint64_t schedules = 0;
};

struct Fault {
  std::string schedule;  // in words
  std::string replay;    // arguments of `baton sim`
  Checker checker = Checker::kCount;
  std::string text;
  std::string tail;
};

struct CampaignReport {
  std::uint64_t schedules = 0;
  std::uint64_t exhausted = 0;
  std::uint64_t sampled = 0;
  std::uint64_t seeds = 0;
  std::uint64_t large = 0;
  std::uint64_t states = 0;
  double seconds = 0;
  std::vector<PairCount> pairs;
  std::map<std::string, std::uint64_t> fault_kinds;  // name -> seeds that had it
  std::map<std::string, std::uint64_t> ends;         // "decode failed(fabric)" -> how often
  std::array<std::uint64_t, kMarks> marks{};
  std::vector<Fault> faults;

  std::vector<std::string> marks_missing() const;
};

// `progress` is called a few times a second with the schedules done and the part (0 to 1).
CampaignReport run_campaign(const CampaignOptions& options,
                            const std::function<void(std::uint64_t, double)>& progress);

// One schedule again. True: no checker complained.
bool replay_seed(std::uint64_t seed, bool large, bool trace, std::uint64_t& hash);
bool replay_pair(const PairCase& pair, const std::vector<std::uint32_t>& path, std::uint64_t sample,
                 bool trace, std::uint64_t& hash);

}  // namespace baton::sim
