# Two commands set up everything on a fresh machine: `make demo` and `make test`.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-input
DEMO ?= plans/m70-2dc-lat2-bw2-1x/profile.json
SCHEMAS := profile plan report
PYTEST_ARGS ?=
WORKERS ?= auto
# The torch that the runtime tests run on; a CPU build does, name one with TORCH=... where this pulls a large one.
TORCH ?= torch==2.13.0
BENCH_ARGS ?=

# Stamps: what is installed in the environment, made again when pyproject.toml changes.
CORE := $(VENV)/.cpipe-core
DEV := $(VENV)/.cpipe-dev
BROWSER := $(VENV)/.cpipe-browser

.PHONY: help venv dev demo test test-fast check fmt lint types imports schemas schemas-fresh pins pins-update readme golden bench bench-runtime tables clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- environment

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "error: cpipe needs Python 3.11 or later; name one with PYTHON=..." >&2; exit 1; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(CORE): pyproject.toml | $(BIN)/python
	@echo "installing cpipe into $(VENV)"
	@$(PIP) --editable .
	@touch $@

# After CORE, never beside it: two pips at once would break the environment.
$(DEV): pyproject.toml | $(CORE)
	@echo "installing cpipe and its development tools into $(VENV)"
	@$(PIP) $(TORCH)
	@$(PIP) --editable '.[dev,torch,cpsat,dask,png]'
	@touch $@

# Tests of the HTML page drive Chromium. As root, in a container say, it is installed; otherwise they are skipped without it.
$(BROWSER): | $(BIN)/python
	@command -v chromium chromium-browser google-chrome >/dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null \
	  || { echo "installing chromium for the tests of the HTML page"; \
	       { timeout 600 apt-get install -y -qq --no-install-recommends chromium || { timeout 300 apt-get update -qq && \
	         timeout 600 apt-get install -y -qq --no-install-recommends chromium; }; } >/dev/null 2>&1 < /dev/null \
	       || echo "note: no chromium; the tests that need it are skipped"; }
	@touch $@

venv: $(CORE) ## Create .venv with cpipe and what it needs to run

dev: $(DEV) ## Create .venv with the development tools too

# --- use

demo: $(CORE) ## Solve a shipped case and show the plan (DEMO=profile.json for another)
	@mkdir -p build
	$(BIN)/cpipe solve $(DEMO) -o build/demo-plan.json
	$(BIN)/cpipe show build/demo-plan.json

# --- tests

test: $(DEV) $(BROWSER) ## Run all tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)

test-fast: $(DEV) ## Run the tests that are not marked slow, stop at the first failure
	$(BIN)/python -m pytest -x -m 'not slow' $(PYTEST_ARGS)

golden: $(DEV) ## Write the expected outputs of tests/golden anew; look at the difference before you keep it
	$(BIN)/python -m pytest --update-golden $(PYTEST_ARGS)

# --- checks

check: lint types imports schemas-fresh pins readme ## Run every check that is not a test

fmt: $(DEV) ## Format the code and apply the safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: $(DEV) ## Check format and style
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(DEV) ## Check types
	$(BIN)/mypy

imports: $(DEV) ## Check the layers
	$(BIN)/lint-imports

schemas: $(CORE) ## Write the JSON schemas anew from the types
	@mkdir -p build/schemas
	@for name in $(SCHEMAS); do \
	  $(BIN)/cpipe schema $$name > build/schemas/$$name.v1.schema.json; \
	  cp build/schemas/$$name.v1.schema.json schemas/; \
	  echo "schemas/$$name.v1.schema.json"; \
	done

schemas-fresh: $(CORE) ## Check that the JSON schemas are those of the types
	@mkdir -p build/schemas
	@for name in $(SCHEMAS); do \
	  $(BIN)/cpipe schema $$name > build/schemas/$$name.v1.schema.json; \
	  diff -u schemas/$$name.v1.schema.json build/schemas/$$name.v1.schema.json \
	    || { echo "error: schemas/$$name.v1.schema.json is stale; run \`make schemas\`" >&2; exit 1; }; \
	  echo "schemas/$$name.v1.schema.json is fresh"; \
	done

pins: $(CORE) ## Check every shipped plan against its profile
	$(BIN)/cpipe check plans/

pins-update: $(CORE) ## Make every shipped plan anew; look at the difference before you keep it
	@for profile in $(sort $(wildcard plans/*/profile.json)); do \
	  echo "$$profile"; \
	  $(BIN)/cpipe solve $$profile -o "$${profile%profile.json}plan.json"; \
	done

readme: $(DEV) ## Run the commands of the README in a copy of the repository
	$(BIN)/python tests/readme_blocks.py README.md

# --- housekeeping

bench: $(CORE) ## Measure quality and speed (BENCH_ARGS="--quick --json FILE")
	PYTHONPATH=tests $(BIN)/python -m bench.run $(BENCH_ARGS)

bench-runtime: $(DEV) ## Compare predicted with measured step times on this machine (minutes)
	PYTHONPATH=tests $(BIN)/python -m bench.runtime $(BENCH_ARGS)

tables: $(CORE) ## Compare the model with Tables 5 and 6 of CrossPipe
	PYTHONPATH=tests $(BIN)/python -m bench.tables

clean: ## Remove what was built and cached, but not .venv
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find cpipe tests -name __pycache__ -type d -prune -exec rm -rf {} +
