// What both machines say of themselves in a handshake; each adds what only it knows.
#pragma once

#include "handover/config.h"
#include "wire/messages.h"

namespace baton::handover {

wire::Hello greeting(const Config& config);

}  // namespace baton::handover
