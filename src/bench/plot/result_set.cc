#include "bench/plot/result_set.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>

#include "bench/plot/text_file.h"

namespace baton::bench::plot {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kFileBytesMax = std::size_t{256} << 20;

// The order of the legend: what is published first, then ours; names of others after them.
constexpr std::array<std::string_view, 8> kOrder = {
    "local",         "pull",           "engine-loop-pull",      "engine-loop-pull-merged",
    "threaded-pull", "published-push", "published-push-merged", "push"};

std::size_t rank(std::string_view mode) {
  return static_cast<std::size_t>(std::ranges::find(kOrder, mode) - kOrder.begin());
}

std::string joined(const std::vector<std::string>& names) {
  return printable(fmt::format("{}", fmt::join(names, ", ")));
}

using Named = std::vector<std::pair<fs::path, FileName>>;

Result<Named> list_results(const fs::path& folder) {
  Named out;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (auto name = parse_file_name(it->path().filename().string())) {
      out.emplace_back(it->path(), std::move(*name));
    }
  }
  const std::string shown = printable(folder.string());
  if (error) return fail(Errc::kNotFound, fmt::format("{}: {}", shown, error.message()));
  if (out.empty()) {
    return fail(Errc::kNotFound,
                fmt::format("{}: no result file (<mode>_qps<q>_in<i>_out<o>_iter<n>.json)", shown));
  }
  return out;
}

Result<std::vector<std::string>> choose_modes(const Named& files, const fs::path& folder,
                                              const std::vector<std::string>& wanted) {
  std::vector<std::string> there;
  for (const auto& [path, name] : files) {
    if (std::ranges::find(there, name.mode) == there.end()) there.push_back(name.mode);
  }
  std::ranges::sort(there, [](const std::string& a, const std::string& b) {
    return std::pair(rank(a), a) < std::pair(rank(b), b);
  });
  for (const std::string& mode : wanted) {
    if (std::ranges::find(there, mode) == there.end()) {
      return fail(Errc::kNotFound,
                  fmt::format("{}: no results of mode {}; it has {}", printable(folder.string()),
                              printable(mode), joined(there)));
    }
  }
  return wanted.empty() ? there : wanted;
}

void sort_results(ResultSet& set) {
  const auto place = [&](const ResultFile& result) {
    return std::ranges::find(set.modes, result.mode) - set.modes.begin();
  };
  std::ranges::sort(set.results, [&](const ResultFile& a, const ResultFile& b) {
    return std::tuple(place(a), a.at.key()) < std::tuple(place(b), b.at.key());
  });
}

// 8 and 8.0 in two names are one point: a figure would draw one over the other.
Status check_twice(const ResultSet& set) {
  for (std::size_t i = 1; i < set.results.size(); ++i) {
    const ResultFile& a = set.results[i - 1];
    const ResultFile& b = set.results[i];
    if (a.mode == b.mode && a.at == b.at) {
      return fail(Errc::kAlreadyExists, fmt::format("{} and {} are the same grid point",
                                                    printable(a.name), printable(b.name)));
    }
  }
  return {};
}

// One side of a comparison: a mode of a folder, or a whole folder.
struct Side {
  std::string name;
  std::set<GridPoint> grid;
};

Side side_of(const ResultSet& set, std::string_view mode, std::string name) {
  Side side{printable(name), {}};
  for (const ResultFile& result : set.results) {
    if (result.mode == mode) side.grid.insert(result.at);
  }
  return side;
}

template <typename Member>
std::string values_of(const Side& side, Member GridPoint::* member) {
  std::set<Member> values;
  for (const GridPoint& at : side.grid) values.insert(at.*member);
  return fmt::format("{}", fmt::join(values, ", "));
}

std::string point_text(const GridPoint& at) {
  return fmt::format("qps {}, input_len {}, output_len {}, iteration {}", at.qps, at.input_len,
                     at.output_len, at.iteration);
}

// Empty: the same grid.
std::string grid_difference(const Side& a, const Side& b) {
  const auto unlike = [&](std::string_view field, auto member) {
    const std::string ours = values_of(a, member);
    const std::string theirs = values_of(b, member);
    if (ours == theirs) return std::string();
    return fmt::format("{}: {} has {}; {} has {}", field, a.name, ours, b.name, theirs);
  };
  for (const std::string& difference :
       {unlike("qps", &GridPoint::qps), unlike("input_len", &GridPoint::input_len),
        unlike("output_len", &GridPoint::output_len), unlike("iteration", &GridPoint::iteration)}) {
    if (!difference.empty()) return difference;
  }
  for (const auto& [mine, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    for (const GridPoint& at : mine->grid) {
      if (other->grid.contains(at)) continue;
      return fmt::format("{} has {}; {} has no such result", mine->name, point_text(at),
                         other->name);
    }
  }
  return {};
}

// What makes a mode of running servers: modes are there to differ in it.
bool is_modes_own(std::string_view key) {
  return key.ends_with(".pull_loop") || key.ends_with(".transfer_style");
}

std::string shown(const std::optional<std::string>& value) {
  return value ? printable(*value) : "absent";
}

std::string said(const ResultFile& result, const std::string& key) {
  const auto it = result.setting.all.find(key);
  return it == result.setting.all.end() ? "absent" : it->second;
}

// Everything in one folder ran as its first result did.
std::string setting_difference(const ResultFile& a, const ResultFile& b) {
  const auto unlike = [&](std::string_view field, const std::string& ours,
                          const std::string& theirs) {
    if (ours == theirs) return std::string();
    return fmt::format("{}: {} has {}; {} has {}", field, printable(a.name), ours,
                       printable(b.name), theirs);
  };
  for (const std::string& difference :
       {unlike("first_token", shown(a.setting.first_token), shown(b.setting.first_token)),
        unlike("prefill", shown(a.setting.prefill), shown(b.setting.prefill)),
        unlike("emulated", fmt::format("{}", a.setting.emulated),
               fmt::format("{}", b.setting.emulated)),
        unlike("variant", printable(a.setting.variant), printable(b.setting.variant)),
        unlike("profile", printable(a.setting.profile), printable(b.setting.profile)),
        unlike("scale", fmt::format("{}", a.setting.scale), fmt::format("{}", b.setting.scale))}) {
    if (!difference.empty()) return difference;
  }
  for (const ResultFile* side : {&a, &b}) {
    for (const auto& [key, value] : side->setting.all) {
      if (is_modes_own(key)) continue;
      const std::string difference =
          unlike("setting " + printable(key), printable(said(a, key)), printable(said(b, key)));
      if (!difference.empty()) return difference;
    }
  }
  return {};
}

Status check_settings(const ResultSet& set) {
  std::map<GridPoint, const ResultFile*> first;
  for (const ResultFile& result : set.results) {
    std::string difference = setting_difference(set.results.front(), result);
    const ResultFile& same_point = *first.try_emplace(result.at, &result).first->second;
    if (difference.empty() && same_point.seed && result.seed && same_point.seed != result.seed) {
      difference = fmt::format("seed: {} has {}; {} has {}", printable(same_point.name),
                               *same_point.seed, printable(result.name), *result.seed);
    }
    if (!difference.empty()) {
      return fail(Errc::kMismatch, fmt::format("{}: these are not comparable: {}",
                                               printable(set.label), difference));
    }
  }
  return {};
}

}  // namespace

Result<ResultSet> read_results(const fs::path& folder, const std::vector<std::string>& modes,
                               std::size_t requests_max) {
  const auto files = list_results(folder);
  if (!files) return tl::unexpected(files.error());
  auto chosen = choose_modes(*files, folder, modes);
  if (!chosen) return tl::unexpected(chosen.error());
  ResultSet set{folder.string(), std::move(*chosen), {}};
  for (const auto& [path, name] : *files) {
    if (std::ranges::find(set.modes, name.mode) == set.modes.end()) continue;
    const auto text = read_file(path, kFileBytesMax);
    if (!text) return tl::unexpected(text.error());
    auto result = parse_result(path.filename().string(), name, *text, requests_max);
    if (!result) return tl::unexpected(result.error());
    set.results.push_back(std::move(*result));
  }
  sort_results(set);
  if (const Status once = check_twice(set); !once) return tl::unexpected(once.error());
  return set;
}

Status check_comparable(const ResultSet& set) {
  const Side first = side_of(set, set.modes.front(), "mode " + set.modes.front());
  for (const std::string& mode : set.modes) {
    const std::string difference = grid_difference(first, side_of(set, mode, "mode " + mode));
    if (difference.empty()) continue;
    return fail(Errc::kMismatch,
                fmt::format("{}: the grids differ in {} (--modes leaves a mode out)",
                            printable(set.label), difference));
  }
  return check_settings(set);
}

Status check_comparable(const ResultSet& ours, const ResultSet& theirs) {
  if (ours.modes != theirs.modes) {
    return fail(Errc::kMismatch,
                fmt::format("the grids differ in mode: {} has {}; {} has {}", printable(ours.label),
                            joined(ours.modes), printable(theirs.label), joined(theirs.modes)));
  }
  for (const std::string& mode : ours.modes) {
    const std::string difference =
        grid_difference(side_of(ours, mode, ours.label), side_of(theirs, mode, theirs.label));
    if (!difference.empty()) {
      return fail(Errc::kMismatch, fmt::format("the grids differ in {}", difference));
    }
  }
  return {};
}

std::vector<UnlikeSetting> unlike_settings(const ResultSet& ours, const ResultSet& theirs) {
  const ResultFile& a = ours.results.front();
  const ResultFile& b = theirs.results.front();
  std::set<std::string> keys;
  for (const ResultFile* side : {&a, &b}) {
    for (const auto& [key, value] : side->setting.all) {
      if (!is_modes_own(key)) keys.insert(key);
    }
  }
  std::vector<UnlikeSetting> out;
  for (const std::string& key : keys) {
    if (said(a, key) != said(b, key)) out.push_back({key, said(a, key), said(b, key)});
  }
  // The two stand in one order; the seeds of the first point that differs stand for all.
  const auto differ = [](const ResultFile& x, const ResultFile& y) {
    return x.seed && y.seed && x.seed != y.seed;
  };
  const auto [x, y] = std::ranges::mismatch(ours.results, theirs.results, std::not_fn(differ));
  if (x != ours.results.end()) {
    out.push_back({"seed", fmt::format("{}", *x->seed), fmt::format("{}", *y->seed)});
  }
  return out;
}

}  // namespace baton::bench::plot
