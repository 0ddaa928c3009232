# Needs make and Python >= 3.11, nothing else. `make demo` and `make test` do everything.

VENV ?= .venv
# The first interpreter on the path that is new enough.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; \
	done)
BIN := $(VENV)/bin
READY := $(VENV)/.installed
SOURCES := sglang_dspark tests examples

.PHONY: help demo test test-full serve bench-planner lint format install clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY)  ## install, then serve the bundled pair with and without DSPARK and compare
	$(BIN)/sglang-dspark demo --force $(ARGS)

test: $(READY)  ## install, then run the tests (ARGS="-k name" for some of them)
	$(BIN)/python -m pytest $(ARGS)

test-full: $(READY)  ## the whole grid of servers, hours; continues where it was stopped
	$(BIN)/python -m tests.server.whole_grid --out out/grid.json $(ARGS)

serve: $(READY)  ## leave a server with the bundled pair running on port 30000
	$(BIN)/sglang-dspark serve $(ARGS)

bench-planner: $(READY)  ## time the planner beside SGLang's own
	$(BIN)/python -m sglang_dspark.profiling.bench_planner $(ARGS)

lint: $(READY)  ## format check, lint, types
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy sglang_dspark/core sglang_dspark/profiling sglang_dspark/settings.py \
		sglang_dspark/cli sglang_dspark/doctor

format: $(READY)  ## rewrite the source as `lint` wants it
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

install: $(READY)  ## only create the environment

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 found; name one with PYTHON=..." >&2; exit 1; }
	@echo "Installing into $(VENV): SGLang and PyTorch, about 11 GB, several minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade pip
	$(BIN)/python -m pip install -e '.[dev]'
	@touch $@

clean:  ## remove the environment and everything that was generated
	rm -rf $(VENV) out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
