// The release's number, as `baton --version` and GET /version say it.
#pragma once

#include <string>

namespace baton::serving {

std::string version();       // "0.1.0"
std::string version_body();  // JSON

}  // namespace baton::serving
