// The backend `timed` of `baton serve`: from its flags to an engine that computes nothing, and what
// the instance says of it. Everything that leaves such an instance carries the word *emulated*.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/timed/timed_model.h"

namespace baton::serving {

struct ServeOptions;

// What an instance tells of what it emulates, in /health, /metrics, models, records and answers.
struct Emulation {
  std::string profile;         // its name
  std::string model;           // what is emulated
  std::string prefill;         // "computed" or "cached"
  std::string transfer_style;  // "baton", "published" or "published-merged"
  std::uint32_t kv_bytes_scale = 1;
  std::uint32_t kv_regions_per_layer = 0;
  std::uint32_t kv_region_token_bytes = 0;  // scaled
  std::uint64_t link_bytes_per_second = 0;
  double posting_cost_us = 0;  // a descriptor, where the style or the pull loop pays it
  bool pays_posting = false;   // this instance does
  std::string profile_hash;    // engine::timed::hash_of(): of its numbers
  std::shared_ptr<const engine::timed::TimedMetrics> metrics;

  // One line: "emulated: ...".
  std::string text() const;
  // A JSON object of the same.
  std::string json() const;
};

struct TimedBackend {
  engine::timed::Profile profile;
  engine::timed::TimedOptions options;
  std::string transfer_style;
  std::uint64_t link_bytes_per_second = 0;
  double posting_cost_us = 0;
  std::shared_ptr<engine::timed::TimedMetrics> metrics;

  // `engine`: as apply() left it.
  Emulation emulation(const engine::EngineOptions& engine) const;
};

// Of the numbers of a profile by its file or name, as an instance with it says it. kNotFound.
Result<std::string> profile_hash(const std::string& profile);

// Unset: another backend. Flags of `timed` without it, unknown values and a bad profile become
// `problems`, one a line.
std::optional<TimedBackend> timed_backend(const ServeOptions& options,
                                          std::vector<std::string>& problems);

// What the profile says of the engine, where a flag does not say it, and of the hand-over's link.
void apply(const TimedBackend& backend, const ServeOptions& options, engine::EngineOptions& out);

Result<std::unique_ptr<model::Model>> make_timed_model(const TimedBackend& backend);

}  // namespace baton::serving
