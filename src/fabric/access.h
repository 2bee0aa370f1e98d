// The two ways to use a connection, as adapters write them into offers, say them and check them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string_view>

#include "fabric/fabric.h"

namespace baton::fabric {

// In sentences.
inline std::string_view name_of(Access access) {
  return access == Access::kWrite ? "writes" : "reads";
}

// On the wire: neither is 0, and no single bit makes one of the other.
inline std::uint32_t access_word(Access access) {
  return access == Access::kWrite ? 1 : 2;
}
// `what` names the message. Hostile input.
inline Result<Access> decode_access(std::string_view what, std::uint32_t word) {
  for (const Access access : {Access::kWrite, Access::kRead}) {
    if (access_word(access) == word) return access;
  }
  return fail(Errc::kCorrupt,
              fmt::format("{}: access is {}, expected {} (writes) or {} (reads)", what, word,
                          access_word(Access::kWrite), access_word(Access::kRead)));
}

// Whether an outbound that was connected for `granted` may be used for `wanted`.
inline Status check_access(Access granted, Access wanted) {
  if (granted == wanted) return {};
  return fail(Errc::kInvalidArgument,
              fmt::format("this outbound was connected to an offer of {}, {} are refused",
                          name_of(granted), name_of(wanted)));
}

// The same places, length and context: adapters keep one queue for both and turn the direction.
inline Write as_write(const Read& read) {
  Write write;
  write.to = read.from;
  write.local_region = read.local_region;
  write.local_offset = read.local_offset;
  write.remote_region = read.remote_region;
  write.remote_offset = read.remote_offset;
  write.length = read.length;
  write.context = read.context;
  return write;
}

// What is wrong with a posted write or read whatever its places: a read is of something, and
// neither is longer than allowed.
inline Status check_length(Access access, std::uint64_t length, std::uint64_t most) {
  if (access == Access::kRead && length == 0) {
    return fail(Errc::kInvalidArgument, "length is 0, a read is of at least 1 byte");
  }
  if (length <= most) return {};
  return fail(Errc::kInvalidArgument,
              fmt::format("length {} is above write_bytes_max {}", length, most));
}

}  // namespace baton::fabric
