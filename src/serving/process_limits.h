// What the system allows this process.
#pragma once

#include "serving/instance_info.h"

namespace baton::serving {

InstanceInfo::Limits process_limits();

}  // namespace baton::serving
