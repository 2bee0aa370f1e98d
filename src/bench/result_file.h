// The result of a run as a file: the keys of `vllm bench serve` at the top, ours below `baton`.
// docs/operating.md lists them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "baton/result.h"
#include "bench/bench_run.h"

namespace baton::bench {

// What a sweep knows of a point beyond the load; `baton bench serve` fills what it can.
struct PointInfo {
  std::string mode;
  std::optional<double> qps;
  std::optional<std::uint32_t> input_len, output_len, iteration;
  std::string first_token;  // "" where unknown, as the following
  std::string prefill;      // computed, cached
  bool emulated = false;
  std::string profile;
  std::optional<double> link_rate;  // bytes a second
  // Of a sweep: every setting that changes a result, a JSON object ("": no sweep); and in words
  // those that are not the usual ones.
  std::string settings;
  std::string variant;
  std::vector<std::string> prefill_flags, decode_flags, route_flags;
  // Every answer's prompt crosses from P to D, and the servers say what crossed: one that does not
  // say is no result of the mode.
  bool hands_over = false;
  // Not by a loopback address: what is known of this host's cores is the driver's alone.
  bool servers_are_elsewhere = false;
  std::string void_reason;  // "": the point counts
};

// What the servers said themselves goes before what nobody said.
PointInfo point_of(const BenchOptions& options, const BenchRun& run);

// Why a point does not count: bytes moved unlike the full prompts', requests without a hand-over,
// its record or an answer, a late load, the cores as the limit. "" if it counts.
std::string void_reason(const PointInfo& point, const BenchOptions& options, const BenchRun& run);

// JSON text, indented.
std::string result_json(const PointInfo& point, const BenchOptions& options, const BenchRun& run);

// "openai-4qps-tiny-20261130-090000.json", or what --result-filename says, in --result-dir.
std::string result_path(const BenchOptions& options, const BenchRun& run);

// That a result can be written where it is to be; makes the folder.
Status check_result_dir(const BenchOptions& options);

// Whole or not at all: written beside and renamed. Makes the directory.
Status write_file(const std::string& path, const std::string& text);

// The table for people, as `vllm bench serve` prints it.
std::string result_table(const PointInfo& point, const BenchOptions& options, const BenchRun& run);

}  // namespace baton::bench
