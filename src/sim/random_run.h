// The random part: a world drawn from a seed, requests through the router, faults at random
// moments; then the faults end, everything that was accepted must end within its bound, every
// table must be empty, and a plain request between every P and every D must succeed.
#pragma once

#include <cstdint>

#include "sim/journal.h"
#include "sim/mix.h"
#include "sim/state_count.h"

namespace baton::sim {

void run_random(std::uint64_t seed, const Mix& mix, Journal& journal, StateCount* states);

}  // namespace baton::sim
