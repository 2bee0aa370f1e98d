# The front door. `make help` lists the doors.
.DEFAULT_GOAL := help
SHELL := /bin/bash
JOBS ?= $(shell nproc)
BUILD := build/release
FABRIC ?= auto
PYTHON := .venv/bin/python

.PHONY: help setup configure build demo test bench check format tidy analyze sanitize soak soak-long clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what is needed (idempotent; every other door calls it)
	@tools/setup

build: configure ## compile the release build, tests included
	@cmake --build --preset release -j $(JOBS)

configure: setup
	@cmake --preset release >build/cmake.log 2>&1 || { cat build/cmake.log; exit 1; }

demo: configure ## P, D and router with a real model, all checked (FABRIC=auto, shm, libfabric)
	@cmake --build --preset release -j $(JOBS) --target baton
	@$(PYTHON) demo/demo.py --baton $(BUILD)/src/apps/baton --fabric $(FABRIC)

test: build ## all tests of CI's share
	@ctest --preset release -j $(JOBS)

bench: build ## the hand-over's budgets, measured in one run
	@$(PYTHON) bench/run.py --build $(BUILD)

format: ## rewrite the sources in the project's format
	@git ls-files '*.h' '*.cc' | xargs clang-format-19 -i

tidy: setup ## format, rooms and hygiene, clang-tidy
	@tools/tidy

analyze: setup ## clang's static analyzer over the sources (long)
	@cmake --preset tidy >/dev/null && cmake --build --preset tidy --target baton_generated >/dev/null && \
	  git ls-files 'src/*.cc' | grep -v -e '_test\.cc$$' -e '_bench\.cc$$' -e '_fuzz\.cc$$' -e '/testing/' | \
	  xargs -P $(JOBS) -n 1 clang-tidy-19 --quiet -p build/tidy --checks='-*,clang-analyzer-core.*,clang-analyzer-cplusplus.*' --warnings-as-errors='*'

sanitize: setup ## unit and conformance tests under ASan, UBSan and TSan (long)
	@for kind in asan tsan; do cmake --preset $$kind >/dev/null && cmake --build --preset $$kind -j $(JOBS) && \
	  ctest --preset $$kind -j $(JOBS) || exit 1; done

soak: build ## real processes under load, killed, stopped and restarted at random: 30 rounds
	@$(PYTHON) tests/soak/soak.py

soak-long: build ## the same, 1,000 rounds (about 40 minutes)
	@$(PYTHON) tests/soak/soak.py --rounds 1000 --seed 2

check: tidy ## what CI runs: format, tidy, then the tests
	@$(MAKE) --no-print-directory test

clean: ## remove build outputs (the model stays)
	@rm -rf build/release build/dev build/asan build/tsan build/tidy
