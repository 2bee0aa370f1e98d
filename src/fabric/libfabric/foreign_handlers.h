// Debian's libfabric brings libinfinipath, which takes over SIGINT, SIGTERM and the signals of a
// crash when it is loaded, and writes a file into the working directory when one arrives.
#pragma once

namespace baton::fabric::libfabric {

// Puts the default action back where a handler of that library stands; every other handler stays.
// Runs by itself before main(); calling it again is harmless.
void drop_foreign_handlers();

}  // namespace baton::fabric::libfabric
