// How Agent::create() makes an agent once it has a fabric; tests and benchmarks bring fabrics of
// their own, and options that create() refuses because nothing serves them yet (pull).
#pragma once

#include <memory>

#include "baton/agent.h"
#include "fabric/fabric.h"

namespace baton {

// Errors name the field and its value.
Status check_options(const AgentOptions& options);

// A new incarnation of options.engine_id.
PeerId make_peer_id(const AgentOptions& options);

// `fabric` is that of `id`, with nothing registered yet. Options and geometry are checked in here.
Result<std::unique_ptr<Agent>> make_agent(const AgentOptions& options, const Geometry& geometry,
                                          const PeerId& id, std::unique_ptr<fabric::Fabric> fabric);

}  // namespace baton
