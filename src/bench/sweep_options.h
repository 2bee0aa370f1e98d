// What `baton sweep` is told. Names and defaults are those of the published experiment where it has
// one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "baton/result.h"

namespace baton::bench {

struct SweepOptions {
  std::string modes =
      "local,engine-loop-pull,engine-loop-pull-merged,threaded-pull,published-push,"
      "published-push-merged,push";
  std::string qps_list = "1 2 4 8";                      // QPS_LIST
  std::string input_lens = "1024 2048 4096 8192 16384";  // INPUT_LENS
  std::string output_lens = "128";                       // OUTPUT_LENS
  std::uint32_t iterations = 1;
  double point_seconds = 30;      // arrivals of a point take so long
  std::uint32_t min_prompts = 8;  // of a point, at least
  std::uint32_t num_warmups = 2;  // before it, not counted: connections are made, pages are there
  std::string results_dir = "results";
  bool force = false;  // run again what has a result
  // A void point is said and drawn as void, and is no failure of the sweep: for machines that
  // cannot carry the grid, where the way is tried and not the figures.
  bool allow_void = false;
  // Points of another build, or of another content of the profile, are kept beside the new ones.
  bool allow_other_build = false;
  bool dry_run = false;  // say what would run, and how

  std::string model;  // of --backend cpu: a GGUF file or name
  std::string served_model_name = "Qwen";
  std::string backend = "timed";               // timed, cpu
  std::string profile = "qwen3-32b-tp8-h200";  // of timed
  std::string prefill = "computed";            // computed, cached
  std::string first_token = "decode";          // decode, prefill
  std::uint32_t max_num_seqs = 8;              // 0: no limit
  std::optional<double> posting_cost;          // microseconds; of the modes that pay it
  std::size_t transfer_records = 1024;         // that each server keeps
  std::vector<std::string> serve_flags;        // for every instance, as `baton serve` has them
  // Which of the above were said, and not only left at their defaults. Of running servers the
  // others are what they say themselves, and where they say nothing, not known.
  struct Given {
    bool backend = false, profile = false, prefill = false, first_token = false,
         max_num_seqs = false, served_model_name = false;
  } given;
  std::string router_url, prefill_url, decode_url;  // running servers, of one mode
  bool is_running() const { return !router_url.empty() || !prefill_url.empty(); }
  // What running ones said of themselves: {"prefill": {...}, "decode": {...}}; "": nobody was
  // asked.
  std::string servers;
  // Of the servers that will make the results, known before them; "": nobody could be asked.
  std::string server_build;  // build_identity(), or that of each side
  std::string profile_hash;  // of the profile's numbers
  // What the article's scripts are told of P; running servers say it themselves, and are compared.
  // 0 and "": not given.
  std::uint32_t prefill_tp_size = 0, prefill_pp_size = 0;
  std::uint16_t prefill_side_channel_port = 0;
  std::string prefill_engine_id, prefill_kv_host;

  std::vector<std::string> goodput;
  std::uint64_t seed = 0;
  double request_timeout = 600;
  bool disable_tqdm = false;
  std::vector<std::string> as_typed;
};

struct SweepGrid {
  std::vector<std::string> modes;
  std::vector<double> qps;
  std::vector<std::uint32_t> input_lens, output_lens;
};

// Checks everything; errors name the flag and the value.
Result<SweepGrid> read_grid(const SweepOptions& options);

}  // namespace baton::bench
