// How one rank's KV cache lies in memory, said once when an agent is made. Peers compare it at the
// handshake; nothing about layout is guessed from shapes afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "baton/ids.h"

namespace baton {

enum class MemoryKind : std::uint8_t {
  kHost,
  kCuda,
  kNeuron
};  // only kHost has run; the others are refused today

// Order inside a block. kHeadsFirst: [K|V][kv head][token][dim] (vLLM's HND). kTokensFirst:
// [K|V][token][kv head][dim] (NHD).
enum class BlockLayout : std::uint8_t { kHeadsFirst, kTokensFirst };

// The memory of one layer (or of several layers that share a block): `num_blocks` blocks,
// `stride_bytes` apart, the first at `base`. `block_bytes` <= `stride_bytes`; the gap is never
// touched. The caller owns the memory and keeps it mapped until the agent is gone.
struct Region {
  std::string name;  // layer name; peers pair regions by name
  std::byte* base = nullptr;
  std::uint64_t stride_bytes = 0;
  std::uint64_t block_bytes = 0;
  std::uint32_t num_blocks = 0;
  std::uint16_t group = 0;  // cache group: blocks of one group share ids
  MemoryKind kind = MemoryKind::kHost;
  // Where `base` lies in a memfd that is sealed against shrinking and growing, so that a peer on
  // this host may map it. -1: memory that an engine allocated itself; a peer on this host then
  // writes it with process_vm_writev.
  int memfd = -1;
  std::uint64_t memfd_offset = 0;
};

// What must agree between P and D, or be planned for. Text fields are compared byte by byte.
struct Geometry {
  std::string model;     // what the weights are, e.g. a hash of the file: not the served name
  std::string kv_dtype;  // "bfloat16", "float32"
  std::uint32_t num_layers = 0;
  std::uint32_t num_kv_heads = 0;  // of the whole model, not of the rank
  std::uint32_t head_dim = 0;
  std::uint32_t block_size = 0;  // tokens a block
  BlockLayout layout = BlockLayout::kHeadsFirst;
  std::uint16_t num_groups = 1;
  std::uint16_t tp_size = 1;
  std::uint16_t pp_size = 1;
  Rank rank;
  std::string kernel_family;  // instruction set of the compute; unlike ones are a warning: tokens
                              // may differ
  std::vector<Region> regions;
};

}  // namespace baton
