// What the system allows this process.
#pragma once

#include "serving/instance_info.h"

namespace baton::serving {

InstanceInfo::Limits process_limits();

// Lets this process open as many files and sockets as its hard limit says; many systems begin with
// 1,024. For the start of a program: what is open stays so.
void raise_open_files();

}  // namespace baton::serving
