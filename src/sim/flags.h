// The flags of `baton sim`, for the command line and for the runner that tests use.
#pragma once

#include "sim/command.h"

namespace CLI {
class App;
}

namespace baton::sim {

void add_flags(CLI::App& app, SimOptions& options);
extern const char* const kSimAbout;

}  // namespace baton::sim
