#include "agent/exposure.h"

#include <fmt/format.h>

#include <algorithm>

#include "agent/tcp.h"
#include "fabric/libfabric/libfabric_fabric.h"

namespace baton {
namespace {

bool has_keys(const Security& security) {
  return !security.psk_file.empty() || !security.certificate_file.empty() ||
         !security.private_key_file.empty() || !security.ca_file.empty();
}

}  // namespace

fabric::Choice fabric_choice(const AgentOptions& options) {
  fabric::Choice choice;
  choice.fabric = options.fabric;
  choice.libfabric.provider = options.fabric_provider;
  choice.libfabric.address = options.fabric_address.empty() ? options.host : options.fabric_address;
  choice.libfabric.connect_timeout =
      std::min<std::chrono::milliseconds>(options.peer_timeout, std::chrono::seconds(2));
  if (!options.fabric_address.empty()) return choice;
  // Where addresses are devices (efa), a host is none: the provider chooses.
  const auto bound = fabric::libfabric::bound_address(choice.libfabric);
  if (bound && !*bound) choice.libfabric.address.clear();
  return choice;
}

Status resolve_fabric_address(AgentOptions& options) {
  const std::string& name = options.fabric_address;
  if (options.fabric == "shm" || name.empty() || tcp::parse(name, 0)) return {};
  const auto bound = fabric::libfabric::bound_address(fabric_choice(options).libfabric);
  if (!bound || !*bound || **bound != name) return {};  // an interface, or a device
  const auto address = tcp::resolve(name, 0);
  if (!address) {
    return fail(Errc::kInvalidArgument,
                fmt::format("fabric address '{}': {}", name, address.error().message));
  }
  options.fabric_address = address->host();
  return {};
}

Result<std::optional<std::string>> exposed_endpoints(const AgentOptions& options) {
  if (options.fabric == "shm") return std::nullopt;
  const auto choice = fabric_choice(options);
  const auto bound = fabric::libfabric::bound_address(choice.libfabric);
  if (!bound) return tl::unexpected(bound.error());
  // No IP address to judge by: such a device is a network's, whatever its name.
  if (!*bound) {
    return fmt::format("'{}' (provider {})", choice.libfabric.address, options.fabric_provider);
  }
  const auto address = tcp::resolve(**bound, 0);
  if (!address) return tl::unexpected(address.error());
  if (address->is_loopback()) return std::nullopt;
  return fmt::format("'{}' ({})", choice.libfabric.address, **bound);
}

Status check_endpoints(const AgentOptions& options) {
  // What keys lack is said where they are read.
  if (options.security.insecure || has_keys(options.security)) return {};
  const auto exposed = exposed_endpoints(options);
  if (!exposed) {
    return fail(Errc::kInvalidArgument,
                fmt::format("whether other hosts can reach {} '{}' is not known: {}",
                            options.fabric_address.empty() ? "host" : "fabric address",
                            fabric_choice(options).libfabric.address, exposed.error().message));
  }
  if (!*exposed) return {};
  return fail(Errc::kInvalidArgument,
              fmt::format("fabric address {} can be reached by other hosts, and whoever connects "
                          "may read and write KV blocks: give certificates or a pre-shared key for "
                          "TLS, or say insecure",
                          **exposed));
}

}  // namespace baton
