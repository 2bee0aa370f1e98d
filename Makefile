# The front door. `make help` lists the doors.
.DEFAULT_GOAL := help
SHELL := /bin/bash
JOBS ?= $(shell nproc)
BUILD := build/release
FABRIC ?= auto
MODE ?= push
PYTHON := .venv/bin/python

.PHONY: help setup configure build demo test bench check check-long format tidy analyze sanitize-ci sanitize fuzz fuzz-long guidellm soak soak-long sim sim-long mutate sweep sweep-grid sweep-page sweep-parts sweep-real sweep-repeats sweep-small clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what is needed (idempotent; every other door calls it)
	@tools/setup

build: configure ## compile the release build, tests included
	@cmake --build --preset release -j $(JOBS)

configure: setup
	@cmake --preset release >build/cmake.log 2>&1 || { cat build/cmake.log; exit 1; }

demo: configure ## P, D and router with a real model, all checked (FABRIC=auto, shm, libfabric; MODE=push, pull)
	@cmake --build --preset release -j $(JOBS) --target baton
	@$(PYTHON) demo/demo.py --baton $(BUILD)/src/apps/baton --fabric $(FABRIC) --mode $(MODE)

test: build ## all tests but the long proofs (fuzzers, sanitizers, soak)
	@tools/ctest -j $(JOBS) -LE proof

bench: build ## the hand-over's budgets, measured in one run
	@$(PYTHON) bench/run.py --build $(BUILD)

format: ## rewrite the sources in the project's format
	@git ls-files '*.h' '*.cc' | xargs clang-format-19 -i

tidy: setup ## format, rooms and hygiene, clang-tidy over every room (long)
	@tools/tidy

analyze: setup ## clang's static analyzer over the sources (long)
	@cmake --preset tidy >/dev/null && cmake --build --preset tidy --target baton_generated >/dev/null && \
	  git ls-files 'src/*.cc' | grep -v -e '_test\.cc$$' -e '_bench\.cc$$' -e '_fuzz\.cc$$' -e '/testing/' | \
	  xargs -P $(JOBS) -n 1 clang-tidy-19 --quiet -p build/tidy --checks='-*,clang-analyzer-core.*,clang-analyzer-cplusplus.*' --warnings-as-errors='*'

sanitize-ci: setup ## CI's share of the sanitizers: what owns memory by hand, reads hostile bytes or has threads
	@for kind in asan tsan; do tools/sanitized build $$kind && tools/sanitized test $$kind || exit 1; done

sanitize: setup ## all tests but those with the real model under ASan, UBSan and TSan (long)
	@for kind in asan tsan; do tools/sanitized build $$kind all && tools/sanitized test-all $$kind || exit 1; done

fuzz: setup ## what strangers may send (control messages, HTTP bodies, GGUF, text) for a minute each
	@tools/sanitized build asan baton_fuzzers && $(PYTHON) tests/fuzz/run.py

fuzz-long: setup ## the same, ten minutes each
	@tools/sanitized build asan baton_fuzzers && $(PYTHON) tests/fuzz/run.py --seconds 600

guidellm: configure ## guidellm, a load generator of others, drives the router (its packages: several GB, once)
	@cmake --build --preset release -j $(JOBS) --target baton baton-make-gguf
	@tools/guidellm

soak: build ## real processes under load, killed, stopped and restarted at random: 30 rounds (FABRIC=shm, libfabric; CI: 15 on each)
	@$(PYTHON) tests/soak/soak.py --fabric $(FABRIC:auto=shm)

soak-long: build ## the same, 1,000 rounds: 480 on shm, 480 on libfabric, 40 cuts of a link (about 50 minutes, the last part needs root)
	@$(PYTHON) tests/soak/soak.py --rounds 480 --seed 2
	@$(PYTHON) tests/soak/soak.py --rounds 480 --seed 2 --fabric libfabric
	@$(PYTHON) tests/netns/netns.py --parts link --rounds 40 --json build/soak/report-link.json

sim: configure ## the simulator, CI's share: every pair of events, 20,000 random worlds (2 minutes)
	@cmake --build --preset release -j $(JOBS) --target sim && $(BUILD)/src/sim/sim --report build/sim/report.json

sim-long: configure ## the same, two million schedules (a quarter of an hour)
	@cmake --build --preset release -j $(JOBS) --target sim && \
	  $(BUILD)/src/sim/sim --preset long --report build/sim/report.json

mutate: configure ## seeded faults in copies of the product, each of which the simulator or its unit test must find (nine minutes)
	@$(PYTHON) tools/mutate

BATON := $(BUILD)/src/apps/baton

sweep-small: configure ## the published experiment in small, emulated, every mode: 2 x 2 x 2 points (3 minutes)
	@cmake --build --preset release -j $(JOBS) --target baton
	@$(BATON) sweep --qps-list "2 8" --input-lens "1024 4096" --output-lens "8 16" --point-seconds 0.5 --min-prompts 2 \
	  --num-warmups 1 --allow-void --results-dir build/sweep-small
	@$(BATON) plot --results-dir build/sweep-small --metric ttft,tpot

# Computed prefill of 8 x 16k tokens a second is more than the emulated GPUs have, so the article's grid has cached
# prompts; the points that can be computed are a grid of their own. The published ways post block by block, as their source
# says, and merged, as the article says. Then light and heavy points again, with runs of eight blocks (a half-worn
# pool: blocks of eight times the tokens) and without what one would blame: the price of a descriptor, the limit of slots, both.
# Heavy points again, with other requests each time: there those of one queue wait for each other, so that only iterations say how
# sure a difference is. And a real model, at rates that one core an instance carries.
SWEPT := build/sweep
EMULATED := --point-seconds 8 --allow-void --goodput ttft:200 tpot:10
CACHED := $(EMULATED) --prefill cached
ENDS := --qps-list "2 8" --input-lens "4096 16384"
PAID := engine-loop-pull,engine-loop-pull-merged,published-push,published-push-merged
EIGHTS := --serve-flag=--block-size --serve-flag=128
MERGED := engine-loop-pull-merged,threaded-pull,published-push-merged,push

sweep: sweep-grid sweep-parts sweep-repeats sweep-real sweep-page ## the article's grid, its parts, a real model (70 minutes on a quiet machine; goes on where it stopped)

sweep-grid: configure ## the article's grid, emulated (half an hour)
	@cmake --build --preset release -j $(JOBS) --target baton
	@$(BATON) sweep $(CACHED) --results-dir $(SWEPT)/grid
	@$(BATON) plot --results-dir $(SWEPT)/grid --metric ttft,tpot,second-token,goodput,handover

PARTS := runs-of-eight runs-of-eight-no-slot-limit free-posting no-slot-limit neither computed

sweep-parts: configure ## its ends: an eighth of the posts, free posts, no slot limit, neither; and computed prefill (20 minutes)
	@cmake --build --preset release -j $(JOBS) --target baton
	@$(BATON) sweep $(CACHED) $(ENDS) --modes engine-loop-pull,threaded-pull,published-push,push \
	  $(EIGHTS) --results-dir $(SWEPT)/runs-of-eight
	@$(BATON) sweep $(CACHED) $(ENDS) --modes engine-loop-pull,threaded-pull,published-push,push \
	  $(EIGHTS) --max-num-seqs 0 --results-dir $(SWEPT)/runs-of-eight-no-slot-limit
	@$(BATON) sweep $(CACHED) $(ENDS) --modes $(PAID) --posting-cost 0 --results-dir $(SWEPT)/free-posting
	@$(BATON) sweep $(CACHED) $(ENDS) --modes $(MERGED) --max-num-seqs 0 --results-dir $(SWEPT)/no-slot-limit
	@$(BATON) sweep $(CACHED) $(ENDS) --modes $(PAID) --posting-cost 0 --max-num-seqs 0 --results-dir $(SWEPT)/neither
	@$(BATON) sweep $(EMULATED) --prefill computed --qps-list "1 2" --input-lens "4096 16384" \
	  --modes engine-loop-pull-merged,threaded-pull,push --results-dir $(SWEPT)/computed
	@for part in $(PARTS); do $(BATON) plot --results-dir $(SWEPT)/$$part --metric ttft,tpot || exit 1; done

sweep-repeats: configure ## heavy points of the ways that merge, five times each (11 minutes)
	@cmake --build --preset release -j $(JOBS) --target baton
	@$(BATON) sweep $(CACHED) --modes $(MERGED) --qps-list 8 --input-lens "4096 8192 16384" --iterations 5 --results-dir $(SWEPT)/repeats
	@$(BATON) plot --results-dir $(SWEPT)/repeats --metric ttft,tpot

sweep-real: configure ## a real model (SmolLM2), one core an instance (8 minutes)
	@cmake --build --preset release -j $(JOBS) --target baton
	@$(BATON) sweep --backend cpu --model smollm2 --modes local,engine-loop-pull,threaded-pull,push --qps-list "0.25 0.5" \
	  --input-lens "32 128" --output-lens 16 --point-seconds 20 --min-prompts 8 --serve-flag=--threads --serve-flag=1 \
	  --allow-void --results-dir $(SWEPT)/real
	@$(BATON) plot --results-dir $(SWEPT)/real --metric ttft,tpot,handover

sweep-page: ## what docs/performance.md has of these results: its tables, and its two figures, in build/sweep/page
	@mkdir -p $(SWEPT)/page
	@$(BATON) plot --results-dir $(SWEPT)/grid --metric ttft,tpot --modes local,$(MERGED) --out $(SWEPT)/page
	@for metric in ttft tpot; do mv $(SWEPT)/page/$${metric}_mean.svg $(SWEPT)/page/sweep-$$metric.svg || exit 1; done
	@tools/sweep_table $(SWEPT) --page > $(SWEPT)/page/tables.md
	@echo "$(SWEPT)/page/tables.md, sweep-ttft.svg, sweep-tpot.svg"

# What CI has no time for on two cores.
LONG := ^(netns|netns_deploy|e2e_load_failures|e2e_bug_reports.*|e2e_pull|e2e_chat_turns_long)$$

check: setup ## what CI runs: format and rooms, all but the longest tests, fuzzers, sanitizers, soak, simulator
	@tools/tidy --fast
	@$(MAKE) --no-print-directory build
	@tools/ctest -j $(JOBS) -E '$(LONG)'

check-long: tidy build ## the same with clang-tidy, guidellm, all of the sanitizers and the suites that CI has no time for
	@tools/ctest -j $(JOBS)
	@$(MAKE) --no-print-directory sanitize
	@$(MAKE) --no-print-directory guidellm

clean: ## remove build outputs (the model stays)
	@rm -rf build/release build/dev build/asan build/tsan build/tidy
