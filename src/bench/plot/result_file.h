// One run's result file, read and checked: `<mode>_qps<q>_in<i>_out<o>_iter<n>.json` with `vllm
// bench serve`'s keys, and ours below "baton". Files without "baton" (real vLLM's) are read, too;
// their grid point is then the file name's alone and their bytes are unchecked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "baton/result.h"
#include "bench/plot/metric.h"

namespace baton::bench::plot {

struct GridPoint {
  double qps = 0;                // requests a second
  std::uint64_t input_len = 0;   // tokens
  std::uint64_t output_len = 0;  // tokens
  std::uint64_t iteration = 0;

  auto key() const { return std::tuple(qps, input_len, output_len, iteration); }
  bool operator<(const GridPoint& other) const { return key() < other.key(); }
  bool operator==(const GridPoint& other) const { return key() == other.key(); }
};

struct FileName {
  std::string mode;
  GridPoint at;
};

// Empty: not the name of a result file (the folder may hold other things). Numbers may be written
// as 8, 8.0 or 0.5.
std::optional<FileName> parse_file_name(std::string_view name);

// What all results of a folder must share to be compared; empty members: a file of vLLM's own.
struct Setting {
  std::optional<std::string> first_token;  // "decode" or "prefill"
  std::optional<std::string> prefill;      // "computed" or "cached"
  bool emulated = false;
  std::string profile;  // of an emulated run
  double scale = 1;     // bytes of an emulated run are the true ones, divided by this
  std::string variant;  // of a sweep: "no slot limit, posting cost 0 us"; "": as published
  // Of a sweep: each setting that changes a result, as JSON, those of an object by
  // "servers.decode.max_num_seqs".
  std::map<std::string, std::string> all;
};

// "emulated: qwen3-32b-tp8-h200, bytes / 64, no slot limit", or "" for a run as it is.
std::string emulated_label(const Setting& setting);

struct ResultFile {
  std::string name;  // of the file, without folder
  std::string mode;
  GridPoint at;
  Setting setting;
  std::optional<std::uint64_t> seed;
  std::string void_reason;  // "": the point counts
  bool saturated = false;   // a queue grew for as long as requests came
  Values values;
  std::string detail_json;    // the checked members that the page shows, as JSON
  std::string requests_json;  // the time lines of single requests, see requests.h; "[]" if none
};

// `text` is the file's. The message of an error names the file and the field. `requests_max`: time
// lines kept of this run.
Result<ResultFile> parse_result(std::string_view file_name, const FileName& name,
                                std::string_view text, std::size_t requests_max);

}  // namespace baton::bench::plot
