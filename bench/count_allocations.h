// Counts every allocation of the program it is linked into. In a file of its own, so that the
// compiler does not see through the replaced operators.
#pragma once

#include <cstdint>

namespace baton::bench {

std::uint64_t allocations();  // so far, by all threads

}  // namespace baton::bench
