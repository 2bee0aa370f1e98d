// What the timed backend takes its times and shapes from: a JSON file in which every number says
// where it comes from. The files are in profiles/; each is of one rank of one model on one kind of
// machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "baton/result.h"

namespace baton::engine::timed {

struct Profile {
  std::string name;         // as the file's own name
  std::string description;  // one sentence
  std::string model;        // what is emulated

  // Shape of the KV of one rank.
  std::uint32_t num_layers = 0;
  std::uint32_t num_kv_heads = 0;  // of the whole model
  std::uint32_t head_dim = 0;
  std::uint32_t tensor_parallel_size = 0;
  std::uint32_t kv_element_bytes = 0;
  std::uint32_t kv_regions_per_layer = 0;  // 2: K and V lie apart; 1: one latent for both
  std::uint32_t block_size = 0;
  std::uint32_t kv_cache_tokens = 0;  // the pool
  std::uint32_t kv_bytes_scale = 0;   // the bytes of a token are divided by this, unless told else

  // Limits of the scheduler.
  std::uint32_t max_model_len = 0;
  std::uint32_t max_num_seqs = 0;
  std::uint32_t max_num_batched_tokens = 0;

  // Time.
  double prefill_tokens_per_s = 0;
  double cached_prefill_step_s = 0;  // a step that finds its prompt tokens in a prefix cache
  double decode_step_s = 0;          // a step in which any sequence decodes: base
  double decode_per_sequence_s = 0;
  double decode_per_context_token_s = 0;

  // The network of one rank, unscaled.
  double link_bytes_per_s = 0;
  double published_post_s = 0;  // what the published stack needs to post one descriptor
};

// Bytes of one token in one region of one rank, unscaled.
std::uint32_t token_bytes(const Profile& profile);
// Those of one rank, by which peers pair them.
std::vector<std::string> region_names(std::uint32_t layers, std::uint32_t regions_per_layer);
// kInvalidArgument where the bytes of a token cannot be divided so: 8 at least must be left, and
// whole words of 8.
Status check_scale(const Profile& profile, std::uint32_t scale);

// Errors name the field and its value: missing, unknown, there twice, no number, out of range,
// without a source, a source of no number.
Result<Profile> parse_profile(std::string_view text);

// XXH3-64 of the numbers with their names, 16 hex digits: alike where nothing but words differs.
std::string hash_of(const Profile& profile);

// `profile` is a file, or the name of one in BATON_PROFILES, in profiles/ of this folder or a
// folder above it, or of one above the program. kNotFound says where it was looked for. A profile
// that has not its file's name is refused: a changed copy must not pass for what it was.
Result<Profile> find_profile(const std::string& profile);

}  // namespace baton::engine::timed
