#include "sim/flags.h"

#include <CLI/CLI.hpp>

namespace baton::sim {

const char* const kSimAbout =
    "runs the shipped hand-over machines of P, D and R under a virtual clock, over a fabric and a\n"
    "control channel that do everything they may, and checks the contract from outside.\n"
    "\n"
    "  baton sim                              what CI runs: every pair of events, 20,000 seeds\n"
    "  baton sim --preset long                the long command: more than a million schedules\n"
    "  baton sim --seed 7 --trace             one random world again, each thing on a line\n"
    "  baton sim --pair 'cancel D,crash P' --path 0,0,5,0,1 --trace     one schedule of a pair\n"
    "\n"
    "Random: a seed draws a world and the faults it has; first faults, then quiet, in which all\n"
    "that was accepted must end within its bound. Exhaustive: two events at all positions of one\n"
    "request's life, and with each all orders that differ from first-due-first in --deviations\n"
    "steps. A fault is printed with the checker's name, the last lines of its trace and the\n"
    "command that replays it; the same command gives the same trace hash.\n"
    "Exit codes: 0 no fault; 1 a fault, or (long) a rare branch that was not reached; 2 wrong use.";

void add_flags(CLI::App& app, SimOptions& o) {
  app.add_option("--preset", o.preset, "ci (default) or long");
  app.add_option("--seeds", o.seeds, "random worlds; 0: none");
  app.add_option("--first-seed", o.first_seed, "of them")->capture_default_str();
  app.add_option("--large-every", o.large_every,
                 "one seed of so many is a large world (3 P x 3 D x 2 ranks, hundreds of "
                 "requests); 0: none");
  app.add_flag("--no-pairs", o.no_pairs, "random worlds alone");
  app.add_option("--deviations", o.deviations,
                 "steps of an exhausted schedule that take something else than what is due first");
  app.add_option("--samples", o.samples, "random walks of each pair, beyond that bound");
  app.add_option("--faults-max", o.faults_max, "stops after so many")->capture_default_str();
  app.add_option("--threads", o.threads, "default: one a core");
  app.add_option("--seed", o.seed, "replays one random world");
  app.add_flag("--large", o.large, "with --seed: it was a large one");
  app.add_option("--pair", o.pair,
                 "exhausts this pair of events alone, or replays one schedule of it");
  app.add_option("--path", o.path, "with --pair: its choices");
  app.add_option("--sample", o.sample, "with --pair: or the number of a random walk");
  app.add_option("--pair-fabric", o.pair_fabric, "with a schedule of --pair: shm, tcp, efa or pull")
      ->check(CLI::IsMember({"shm", "tcp", "efa", "pull"}))
      ->capture_default_str();
  app.add_flag("--trace", o.trace,
               "with --seed or --pair: time, process, event, transfer, detail, number");
  app.add_flag("--json", o.json, "prints the report instead of the summary");
  app.add_option("--report", o.report_file, "writes the report to this file");
}

}  // namespace baton::sim
