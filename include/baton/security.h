// Who may talk on the control channel [I10]. SECURITY.md has the threat model behind these fields.
#pragma once

#include <string>
#include <vector>

namespace baton {

// Files are read once, when the agent is made; a private key or key file that others than its owner
// and group can read is refused. Nothing set: plain connections, which stay on this host.
struct Security {
  // TLS 1.3 with certificates on both sides: all three, PEM. Whoever's certificate `ca_file` issued
  // belongs to the pool, and its certificate names its engine id (DNS subject alternative name).
  std::string certificate_file;
  std::string private_key_file;
  std::string ca_file;
  // Or TLS 1.3 with a pre-shared key: lines "identity:key", the key in 64 to 128 hex digits. The
  // first one is offered when dialling, all of them are taken when listening.
  std::string psk_file;
  // Plain connections may leave this host, in both directions.
  bool insecure = false;
  // Where D may connect to: "host", "host:port", "10.0.0.0/8", "10.0.0.0/8:5600",
  // "[2001:db8::]/32". None: this host only, and anywhere if `insecure`.
  std::vector<std::string> allowed_peers;
};

}  // namespace baton
