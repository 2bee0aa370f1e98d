#include "sim/command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "sim/campaign.h"

namespace baton::sim {
namespace {

constexpr int kUsage = 2;

int usage(const std::string& what) {
  fmt::print(stderr, "baton sim: {}\n`baton sim --help` lists the flags.\n", what);
  return kUsage;
}

std::optional<PairEvent> event_named(std::string_view name) {
  for (std::size_t i = 0; i < kPairEvents; ++i) {
    if (to_string(static_cast<PairEvent>(i)) == name) return static_cast<PairEvent>(i);
  }
  return std::nullopt;
}

std::string event_names() {
  std::string out;
  for (std::size_t i = 0; i < kPairEvents; ++i) {
    out += fmt::format("{}{}", i == 0 ? "" : ", ", to_string(static_cast<PairEvent>(i)));
  }
  return out;
}

int end_replay(bool good, std::uint64_t hash) {
  fmt::print("{}, trace hash {:016x}\n", good ? "no fault" : "FAULT", hash);
  return good ? 0 : 1;
}

using EventPair = std::pair<PairEvent, PairEvent>;

std::optional<EventPair> pair_named(const std::string& text) {
  const std::size_t comma = text.find(',');
  if (comma == std::string::npos) return std::nullopt;
  const auto first = event_named(text.substr(0, comma));
  const auto second = event_named(text.substr(comma + 1));
  if (!first || !second) return std::nullopt;
  return EventPair{std::min(*first, *second), std::max(*first, *second)};
}

int replay_one_pair(const SimOptions& o, const EventPair& events) {
  std::vector<std::uint32_t> path;
  const char* at = o.path.data();
  const char* const end = at + o.path.size();
  while (at < end) {
    std::uint32_t value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc()) return usage(fmt::format("--path '{}': not numbers", o.path));
    path.push_back(value);
    at = next < end ? next + 1 : next;
  }
  PairCase pair{events.first, events.second, PairFabric::kShm, 0};
  for (std::size_t i = 0; i < kPairFabrics; ++i) {
    const auto fabric = static_cast<PairFabric>(i);
    if (to_string(fabric) == o.pair_fabric) pair.fabric = fabric;
  }
  pair.deviations = o.deviations < 0 ? 0 : static_cast<std::uint32_t>(o.deviations);
  std::uint64_t hash = 0;
  const bool good = replay_pair(pair, path, o.sample, o.trace, hash);
  return end_replay(good, hash);
}

CampaignOptions campaign_for(const SimOptions& o) {
  CampaignOptions out;
  out.seeds = 20'000;
  out.samples = 30;
  out.large_every = 250;
  if (o.preset == "long") {
    out.seeds = 200'000;
    out.samples = 2'000;
    out.large_every = 500;
  }
  if (o.seeds >= 0) out.seeds = static_cast<std::uint64_t>(o.seeds);
  if (o.samples >= 0) out.samples = static_cast<std::uint32_t>(o.samples);
  if (o.deviations >= 0) out.deviations = static_cast<std::uint32_t>(o.deviations);
  if (o.large_every >= 0) out.large_every = static_cast<std::uint32_t>(o.large_every);
  out.first_seed = o.first_seed;
  out.faults_max = o.faults_max;
  out.pairs = !o.no_pairs;
  out.threads = o.threads != 0 ? o.threads : std::max(1U, std::thread::hardware_concurrency());
  return out;
}

nlohmann::json to_json(const CampaignReport& r, const CampaignOptions& o) {
  nlohmann::json out;
  out["schedules"] = r.schedules;
  out["seconds"] = r.seconds;
  out["schedules_per_second"] = static_cast<double>(r.schedules) / std::max(r.seconds, 1e-9);
  out["states_reached"] = r.states;
  out["threads"] = o.threads;
  out["exhaustive"] = {{"schedules", r.exhausted}, {"deviations", o.deviations}};
  out["sampled"] = r.sampled;
  out["random"] = {{"seeds", r.seeds}, {"first_seed", o.first_seed}, {"large", r.large}};
  for (const PairCount& p : r.pairs) {
    out["pairs"].push_back({{"first", to_string(p.pair.first)},
                            {"second", to_string(p.pair.second)},
                            {"fabric", to_string(p.pair.fabric)},
                            {"schedules", p.schedules}});
  }
  for (std::size_t i = 0; i < kMarks; ++i) {
    out["marks"][std::string(to_string(static_cast<Mark>(i)))] = r.marks[i];
  }
  out["marks_missing"] = r.marks_missing();
  out["fault_kinds"] = r.fault_kinds;
  out["ends"] = r.ends;
  out["faults"] = nlohmann::json::array();
  for (const Fault& f : r.faults) {
    out["faults"].push_back({{"schedule", f.schedule},
                             {"checker", to_string(f.checker)},
                             {"text", f.text},
                             {"replay", "baton sim " + f.replay + " --trace"}});
  }
  return out;
}

void print_summary(const CampaignReport& r, const CampaignOptions& o) {
  fmt::print("{:>12} schedules in {:.1f} s on {} threads, {:.0f} a second\n", r.schedules,
             r.seconds, o.threads, static_cast<double>(r.schedules) / std::max(r.seconds, 1e-9));
  fmt::print("{:>12} of {} pairs of events, all positions, {} deviation(s) from first-due-first\n",
             r.exhausted, r.pairs.size(), o.deviations);
  fmt::print("{:>12} sampled walks of pairs, {} random seeds ({} large worlds)\n", r.sampled,
             r.seeds, r.large);
  fmt::print("{:>12} states reached\n", r.states);
  const auto missing = r.marks_missing();
  fmt::print("{:>12} of {} rare branches reached", kMarks - missing.size(), kMarks);
  for (const std::string& name : missing)
    fmt::print("{} {}", &name == &missing[0] ? "; not" : ",", name);
  fmt::print("\n");
  for (const Fault& f : r.faults) {
    fmt::print("\nFAULT in {}: {}: {}\n{}replay: baton sim {} --trace\n", f.schedule,
               to_string(f.checker), f.text, f.tail, f.replay);
  }
  if (r.faults.empty()) fmt::print("{:>12}\n", "no fault");
}

void show_progress(std::uint64_t schedules, double part) {
  constexpr int kWidth = 30;
  const int done = std::min(kWidth, static_cast<int>(part * kWidth));
  fmt::print(stderr, "\r[{:=<{}}{:<{}}] {:>3.0f} %  {} schedules ", "", done, "", kWidth - done,
             part * 100, schedules);
  std::fflush(stderr);
}

}  // namespace

int run_sim(const SimOptions& o) {
  // Refusals are what a simulated pool does all day. Who wants them sets the level.
  ::setenv("BATON_LOG_LEVEL", "off", 0);
  if (!o.preset.empty() && o.preset != "ci" && o.preset != "long") {
    return usage(fmt::format("--preset {}: ci or long", o.preset));
  }
  if (o.seed != 0) {
    std::uint64_t hash = 0;
    const bool good = replay_seed(o.seed, o.large, o.trace, hash);
    return end_replay(good, hash);
  }
  const auto events = pair_named(o.pair);
  if (!o.pair.empty() && !events) {
    return usage(fmt::format("--pair '{}' wants two of: {}", o.pair, event_names()));
  }
  if (events && (o.trace || o.sample != 0 || !o.path.empty())) return replay_one_pair(o, *events);
  if (o.trace) return usage("--trace wants --seed or --pair");
  CampaignOptions campaign = campaign_for(o);
  if (events) {
    campaign.only_pair = events;
    campaign.seeds = 0;
  }
  const bool bar = ::isatty(STDERR_FILENO) == 1;
  const CampaignReport report = run_campaign(campaign, bar ? show_progress : nullptr);
  if (bar) fmt::print(stderr, "\n");
  const nlohmann::json json = to_json(report, campaign);
  if (!o.report_file.empty()) {
    std::error_code ignored;
    const std::filesystem::path file(o.report_file);
    if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path(), ignored);
    std::ofstream(file) << json.dump(1) << "\n";
  }
  if (o.json) {
    fmt::print("{}\n", json.dump(1));
  } else {
    print_summary(report, campaign);
  }
  const bool all_marks = o.preset != "long" || report.marks_missing().empty();
  return report.faults.empty() && all_marks ? 0 : 1;
}

}  // namespace baton::sim
