// The machine that this process runs on, as its results name it.
#pragma once

#include <string>

#include "serving/instance_info.h"

namespace baton::serving {

InstanceInfo::Host host_info();
std::string libfabric_version();  // of the library that runs: "1.17"

}  // namespace baton::serving
