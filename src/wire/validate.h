// What a peer may say, given both geometries: checked before any slot, list or address is made of
// it [I7] [I9]. Pure, and every refusal names the field and both values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "baton/geometry.h"
#include "baton/result.h"
#include "layout/geometry_check.h"
#include "wire/messages.h"

namespace baton::wire {

// Whether the sender of `theirs` may be a peer of the sender of `ours`. Either side of a handshake
// calls it on what the other sent; `peer_role` is what the other must be able to be. `theirs` is
// hostile.
std::optional<layout::Mismatch> check_handshake(const Hello& ours, const Hello& theirs,
                                                Role peer_role);

// The protocol both sides speak, after check_handshake(): the smaller of the newest ones.
std::uint16_t spoken_version(const Hello& ours, const Hello& theirs);

// Finds an id that is listed twice. Memory: four bytes a block of the largest pool, made once.
class DuplicateFinder {
 public:
  explicit DuplicateFinder(std::uint32_t pool_blocks) : seen_(pool_blocks, 0) {}
  // All ids are below the pool size.
  std::optional<BlockId> find(std::span<const BlockId> ids);

 private:
  std::vector<std::uint32_t> seen_;
  std::uint32_t round_ = 0;
};

// The rules of a block list: as many groups as the geometry has, a block for each block of the
// range, ids within the pool. `range` begins at a block boundary. Cheap enough for an engine's
// step.
Status check_block_shape(const Geometry& pool, const TokenRange& range,
                         std::span<const std::span<const BlockId>> lists);

// And none twice in its group.
Status check_block_lists(const Geometry& pool, const TokenRange& range,
                         std::span<const std::span<const BlockId>> lists, DuplicateFinder& finder);

// A registration that D sent to us. `pool` is whose blocks it names: D's, or in pull mode ours.
Status check_register(const Geometry& ours, const Geometry& pool, const Register& message,
                      DuplicateFinder& finder);

// Largest pool of any group.
std::uint32_t largest_pool(const Geometry& geometry);

}  // namespace baton::wire
