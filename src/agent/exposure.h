// Which doors of an agent other hosts can reach, and what it must have before they may [I10]. The
// control channel sees to its own (control_channel.h); here are the fabric's endpoints.
#pragma once

#include <optional>
#include <string>

#include "baton/agent.h"
#include "baton/result.h"
#include "fabric/choice/choice_fabric.h"

namespace baton {

// The fabric that `options` asks for. Its endpoints are bound to `fabric_address`, or else to
// `host`; with efa, whose addresses are devices, to `fabric_address` or what the provider chooses.
fabric::Choice fabric_choice(const AgentOptions& options);

// Looks a fabric address that is a host name up, so that what is checked is what is bound, whatever
// the resolver says next. Errors: a name that has no address.
Status resolve_fabric_address(AgentOptions& options);

// "'eth0' (10.0.0.2)" where endpoints of that fabric can be reached by other hosts, nothing where
// they stay on this one (shm, loopback). Asks the system's resolver for a host name: never on the
// owner thread. Errors: an unknown provider, an interface that is down, a name that has no address.
Result<std::optional<std::string>> exposed_endpoints(const AgentOptions& options);

// Refuses endpoints that other hosts can reach while peers are not authenticated and nobody said
// `insecure`: the keys of regions and the offers travel in the clear.
Status check_endpoints(const AgentOptions& options);

}  // namespace baton
