// A hand-over that did not end as done, in words for the client and the log.
#pragma once

#include <string>

#include "baton/event.h"
#include "baton/result.h"

namespace baton::engine {

// Names the cause, the transfer and both instances. `peer`: empty where it is not known.
Error transfer_error(const Event& event, const std::string& own_engine_id, const std::string& peer);

}  // namespace baton::engine
