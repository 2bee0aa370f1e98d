#include "baton/ids.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <cstring>

#include "base/check.h"
#include "base/random.h"

namespace baton {

std::uint64_t random_u64() {
  std::uint64_t value = 0;
  BATON_CHECK(getrandom(&value, sizeof value, 0) == sizeof value, "getrandom gave no bytes");
  return value;
}

std::string TransferId::to_string() const {
  return fmt::format("{:016x}{:016x}", high, low);
}

std::optional<TransferId> TransferId::parse(std::string_view text) {
  if (text.size() != 32) return std::nullopt;
  std::uint64_t halves[2] = {0, 0};
  for (std::size_t i = 0; i < 32; ++i) {
    const char c = text[i];
    std::uint64_t digit = 0;
    if (c >= '0' && c <= '9') {
      digit = static_cast<std::uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<std::uint64_t>(c - 'a' + 10);
    } else {
      return std::nullopt;
    }
    halves[i / 16] = halves[i / 16] << 4 | digit;
  }
  return TransferId{halves[0], halves[1]};
}

TransferId TransferId::random() {
  return {random_u64(), random_u64()};
}

std::string PeerId::to_string() const {
  return fmt::format("{}#{:016x}", engine_id, incarnation);
}

}  // namespace baton
