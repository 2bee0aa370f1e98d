// Which boot of which machine this is: alike in two processes, they share a host and its
// CLOCK_MONOTONIC. Any thread.
#pragma once

#include <string>

namespace baton {

const std::string& boot_id();  // "" where the system does not tell

}  // namespace baton
