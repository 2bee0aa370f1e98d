// Whether a geometry makes sense by itself, and whether two geometries may hand blocks over to each
// other. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "baton/geometry.h"
#include "baton/result.h"

namespace baton::layout {

inline constexpr std::uint16_t kGroupsMax = 16;
inline constexpr std::size_t kRegionsMax = 4096;
inline constexpr std::uint32_t kBlockSizeMax = 65536;
inline constexpr std::uint32_t kPoolBlocksMax = 1U << 24;

// kOurs: memory of this process, so base pointers must be there. kTheirs: a peer's word; only the
// figures count.
enum class Whose : std::uint8_t { kOurs, kTheirs };

// Errors (kInvalidArgument, kUnsupported) name the field and its value. After success every place
// of every block of every region fits 64 bits.
Status validate(const Geometry& geometry, Whose whose);

// A field in which two sides differ, with both values as text.
struct Mismatch {
  std::string field, ours, theirs;
  std::string to_string() const;  // "field: ours is X, theirs is Y"
};

// The first difference that forbids a hand-over. Only equal geometries are served today; number of
// blocks, strides and kernel family may differ.
std::optional<Mismatch> find_mismatch(const Geometry& ours, const Geometry& theirs);

// A difference that allows it, and yet tokens may differ from those of one process.
std::optional<Mismatch> find_warning(const Geometry& ours, const Geometry& theirs);

// Blocks that cover `range`: first and one past the last, as positions in the request (not pool
// ids).
struct BlockSpan {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  std::uint32_t size() const { return end - begin; }
};
BlockSpan blocks_of(const TokenRange& range, std::uint32_t block_size);

// Blocks in the pool of a group; 0 for a group without regions.
std::uint32_t pool_blocks(const Geometry& geometry, std::uint16_t group);

}  // namespace baton::layout
