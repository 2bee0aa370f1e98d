// What this build is: the release's number, as `baton --version` and GET /version say it, and the
// commit that it was made of.
#pragma once

#include <string>

namespace baton::serving {

std::string version();       // "0.1.0"
std::string version_body();  // JSON
// The commit at build time: "58af463c01ab"; where files of the checkout had been changed,
// "58af463c01ab-dirty-" and a hash of the changes; "unknown" of a source that is no git checkout.
std::string build_identity();

}  // namespace baton::serving
