#include "sim/campaign.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <mutex>
#include <thread>

#include "sim/random_run.h"

namespace baton::sim {
namespace {

// What this thread runs, for the line that is printed when a check of the product ends the process.
thread_local std::array<char, 256> running{};

void say_running(const std::string& replay) {
  const std::size_t n = std::min(replay.size(), running.size() - 1);
  std::copy_n(replay.begin(), n, running.begin());
  running[n] = '\0';
}

void on_abort(int) {
  constexpr std::string_view kText = "a check of the product failed; replay: baton sim ";
  (void)!::write(STDERR_FILENO, kText.data(), kText.size());
  (void)!::write(STDERR_FILENO, running.data(), std::char_traits<char>::length(running.data()));
  (void)!::write(STDERR_FILENO, "\n", 1);
}

std::string pair_arguments(const PairCase& pair) {
  return fmt::format("--pair '{},{}' --pair-fabric {}", to_string(pair.first),
                     to_string(pair.second), to_string(pair.fabric));
}

// One worker's share of the counts.
struct Share {
  CampaignReport report;
  StateCount states;
};

class Campaign {
 public:
  explicit Campaign(const CampaignOptions& options) : options_(options) {
    if (!options.pairs) return;
    for (std::size_t fabric = 0; fabric < kPairFabrics; ++fabric) {
      for (std::size_t a = 0; a < kPairEvents; ++a) {
        for (std::size_t b = a; b < kPairEvents; ++b) {
          const auto pair = std::pair(static_cast<PairEvent>(a), static_cast<PairEvent>(b));
          if (options.only_pair && *options.only_pair != pair) continue;
          cases_.push_back(
              {pair.first, pair.second, static_cast<PairFabric>(fabric), options.deviations});
        }
      }
    }
  }

  CampaignReport run(const std::function<void(std::uint64_t, double)>& progress);

 private:
  void work(Share& share);
  void exhaust(const PairCase& pair, Share& share);
  void sample(const PairCase& pair, Share& share);
  void seed(std::uint64_t seed, Share& share);
  bool finish(Journal& journal, std::string schedule, std::string replay, Share& share);
  bool stopped() const { return stop_.load(std::memory_order_relaxed); }

  const CampaignOptions options_;
  std::vector<PairCase> cases_;
  std::atomic<std::size_t> next_case_{0};
  std::atomic<std::uint64_t> next_seed_{0};
  std::atomic<std::uint64_t> done_{0};
  std::atomic<std::uint64_t> tasks_done_{0};
  std::atomic<std::uint32_t> faults_{0};
  std::atomic<bool> stop_{false};
};

// False: enough has failed.
bool Campaign::finish(Journal& journal, std::string schedule, std::string replay, Share& share) {
  CampaignReport& report = share.report;
  ++report.schedules;
  done_.fetch_add(1, std::memory_order_relaxed);
  for (std::size_t i = 0; i < kMarks; ++i) report.marks[i] += journal.marks()[i];
  if (!journal.failed()) return !stopped();
  const Finding& finding = journal.findings().front();
  if (faults_.fetch_add(1) + 1 >= options_.faults_max) stop_ = true;
  report.faults.push_back(
      {std::move(schedule), std::move(replay), finding.checker, finding.text, journal.tail()});
  return !stopped();
}

void Campaign::exhaust(const PairCase& pair, Share& share) {
  PathChoices path;
  std::uint64_t schedules = 0;
  bool go_on = true;
  do {
    Journal journal;
    say_running(fmt::format("{} --deviations {} --path {}", pair_arguments(pair), pair.deviations,
                            fmt::join(path.path(), ",")));
    run_pair(pair, path, journal, &share.states);
    ++schedules;
    go_on =
        journal.failed()
            ? finish(journal, fmt::format("{} x {}", to_string(pair.first), to_string(pair.second)),
                     fmt::format("{} --deviations {} --path {}", pair_arguments(pair),
                                 pair.deviations, fmt::join(path.path(), ",")),
                     share)
            : finish(journal, {}, {}, share);
  } while (go_on && path.next());
  share.report.exhausted += schedules;
  share.report.pairs.push_back({pair, schedules});
}

void Campaign::sample(const PairCase& pair, Share& share) {
  PairCase walk = pair;
  walk.deviations = UINT32_MAX;
  for (std::uint64_t i = 1; i <= options_.samples && !stopped(); ++i) {
    SeededChoices choices(i);
    Journal journal;
    std::string replay = fmt::format("{} --sample {}", pair_arguments(pair), i);
    say_running(replay);
    run_pair(walk, choices, journal, &share.states);
    ++share.report.sampled;
    finish(journal, fmt::format("{} x {}", to_string(pair.first), to_string(pair.second)),
           std::move(replay), share);
  }
}

void Campaign::seed(std::uint64_t seed, Share& share) {
  const bool large = options_.large_every != 0 && seed % options_.large_every == 0;
  const Mix mix = draw_mix(seed, large);
  Journal journal;
  std::string replay = fmt::format("--seed {}{}", seed, large ? " --large" : "");
  say_running(replay);
  run_random(seed, mix, journal, &share.states);
  ++share.report.seeds;
  if (large) ++share.report.large;
  for (const std::string& kind : mix.faults()) ++share.report.fault_kinds[kind];
  for (const auto& [what, n] : journal.counts()) {
    share.report.ends[fmt::format("{} {}({})", what[0], what[1], what[2])] += n;
  }
  finish(journal, fmt::format("seed {}", seed), std::move(replay), share);
}

void Campaign::work(Share& share) {
  for (std::size_t i = next_case_++; i < cases_.size() && !stopped(); i = next_case_++) {
    exhaust(cases_[i], share);
    sample(cases_[i], share);
    ++tasks_done_;
  }
  for (std::uint64_t i = next_seed_++; i < options_.seeds && !stopped(); i = next_seed_++) {
    seed(options_.first_seed + i, share);
    ++tasks_done_;
  }
}

CampaignReport Campaign::run(const std::function<void(std::uint64_t, double)>& progress) {
  std::signal(SIGABRT, on_abort);
  const auto begin = std::chrono::steady_clock::now();
  std::vector<Share> shares(std::max(1U, options_.threads));
  std::vector<std::thread> threads;
  std::atomic<unsigned> running_threads{static_cast<unsigned>(shares.size())};
  for (Share& share : shares) {
    threads.emplace_back([this, &share, &running_threads] {
      work(share);
      --running_threads;
    });
  }
  // A pair takes about as long as a hundred seeds.
  const double all = static_cast<double>(cases_.size() + options_.seeds);
  while (running_threads > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (progress) progress(done_, all == 0 ? 1.0 : static_cast<double>(tasks_done_) / all);
  }
  for (std::thread& thread : threads) thread.join();
  CampaignReport out = std::move(shares.front().report);
  for (std::size_t i = 1; i < shares.size(); ++i) {
    CampaignReport& more = shares[i].report;
    out.schedules += more.schedules;
    out.exhausted += more.exhausted;
    out.sampled += more.sampled;
    out.seeds += more.seeds;
    out.large += more.large;
    for (std::size_t m = 0; m < kMarks; ++m) out.marks[m] += more.marks[m];
    for (const auto& [what, n] : more.ends) out.ends[what] += n;
    for (const auto& [what, n] : more.fault_kinds) out.fault_kinds[what] += n;
    std::move(more.pairs.begin(), more.pairs.end(), std::back_inserter(out.pairs));
    std::move(more.faults.begin(), more.faults.end(), std::back_inserter(out.faults));
    shares.front().states.merge(shares[i].states);
  }
  out.states = shares.front().states.estimate();
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return out;
}

bool tell(const Journal& journal, bool trace, std::uint64_t& hash) {
  hash = journal.hash();
  if (!journal.failed()) return true;
  if (!trace) fmt::print("{}", journal.tail());
  for (const Finding& finding : journal.findings()) {
    fmt::print("{}: {}\n", to_string(finding.checker), finding.text);
  }
  return false;
}

}  // namespace

std::vector<std::string> CampaignReport::marks_missing() const {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < kMarks; ++i) {
    if (marks[i] == 0) out.emplace_back(to_string(static_cast<Mark>(i)));
  }
  return out;
}

CampaignReport run_campaign(const CampaignOptions& options,
                            const std::function<void(std::uint64_t, double)>& progress) {
  return Campaign(options).run(progress);
}

bool replay_seed(std::uint64_t seed, bool large, bool trace, std::uint64_t& hash) {
  Journal journal(trace);
  if (trace) fmt::print("{}\n", Journal::header());
  run_random(seed, draw_mix(seed, large), journal, nullptr);
  return tell(journal, trace, hash);
}

bool replay_pair(const PairCase& pair, const std::vector<std::uint32_t>& path, std::uint64_t sample,
                 bool trace, std::uint64_t& hash) {
  Journal journal(trace);
  if (trace) fmt::print("{}\n", Journal::header());
  if (sample != 0) {
    PairCase walk = pair;
    walk.deviations = UINT32_MAX;
    SeededChoices choices(sample);
    run_pair(walk, choices, journal, nullptr);
  } else {
    PathChoices choices(path);
    run_pair(pair, choices, journal, nullptr);
  }
  return tell(journal, trace, hash);
}

}  // namespace baton::sim
