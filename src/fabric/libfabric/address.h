// Which address of this host endpoints are bound to.
#pragma once

#include <string>

#include "baton/result.h"

namespace baton::fabric::libfabric {

// `wanted` as in Options::address. Host names are left for libfabric to look up.
Result<std::string> source_address(const std::string& wanted);

}  // namespace baton::fabric::libfabric
