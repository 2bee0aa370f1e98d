// `baton sim` alone, without engine and server: what tests, `make sim` and `make mutate` run.
#include <CLI/CLI.hpp>

#include "sim/flags.h"

int main(int argc, char** argv) {
  CLI::App app(baton::sim::kSimAbout, "sim");
  baton::sim::SimOptions options;
  baton::sim::add_flags(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return baton::sim::run_sim(options);
}
