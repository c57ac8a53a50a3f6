# Everything here works from a fresh clone: each target first makes .venv with what it needs.
#
# torch comes first and from constraints.txt, so that nothing pulls another build of it. On Linux, PyPI's build brings CUDA;
# for the much smaller CPU build:  PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make setup

# The first of these that runs and is new enough. Another one:  make setup PYTHON=/path/to/python
PYTHON ?= $(shell for python in python3.11 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
# What `make setup` installs besides the library itself, e.g.  make setup EXTRAS=test,flower,ray
EXTRAS ?= test
# The type check of fedkeep.deploy and of the Ray workers needs Flower and Ray.
LINT_EXTRAS := dev,flower,ray
# Worker processes of the tests.
TEST_WORKERS ?= 2
# Which of the tests over a network: network (all of them), or ray.
MARK ?= network

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --no-input --disable-pip-version-check -c constraints.txt

comma := ,
stamp = $(VENV)/.stamp-$(subst $(comma),-,$(1))
SETUP := $(call stamp,$(EXTRAS))
TEST := $(call stamp,test)
LINT := $(call stamp,$(LINT_EXTRAS))
DOCS := $(call stamp,docs)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Two targets must not install into one .venv at the same time.
.NOTPARALLEL:
.PHONY: help setup demo test test-network lint bench bench-scale bench-peers docs clean

help: ## say what the targets do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(SETUP) ## make .venv with the library and EXTRAS (default: test)

demo: $(TEST) ## run the demonstration and write its report into runs/demo
	$(BIN)/fedkeep demo --out runs/demo

test: $(TEST) ## run all tests, doctests included
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(TEST_WORKERS)

test-network: $(LINT) ## run the tests of a real deployment and of a Ray cluster on loopback (minutes); MARK=ray for one
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m $(MARK)

lint: $(LINT) ## check format, style, types and the direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright src
	$(BIN)/lint-imports

bench: $(TEST) ## measure speed and memory beside the peers; options: make bench BENCH="--data-root DIR"
	$(BIN)/python benchmarks/run.py $(BENCH)

bench-scale: $(LINT) ## measure a million clients, many memories, a large model, two Ray nodes; writes benchmarks/SCALE.md and RAY.md
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/ray_nodes.py --out benchmarks/RAY.md

bench-peers: $(TEST) ## install the peers that `make bench` compares with, each into its own environment
	$(BIN)/python benchmarks/peers/setup.py

docs: $(DOCS) ## build the documentation into site/
	$(BIN)/mkdocs build --strict --quiet

clean: ## remove .venv, caches and built files; runs/ stays
	rm -rf $(VENV) site dist build .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(VENV)/.stamp-torch: constraints.txt
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer found. Install one, or: make setup PYTHON=/path/to/python" >&2; exit 1; }
	@echo "Making $(VENV) with $(PYTHON): torch ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) torch
	@touch $@

$(sort $(SETUP) $(TEST) $(LINT) $(DOCS)): $(VENV)/.stamp-%: pyproject.toml constraints.txt $(VENV)/.stamp-torch
	@echo "Installing fedkeep[$(subst -,$(comma),$*)] ..."
	@$(PIP) -e ".[$(subst -,$(comma),$*)]"
	@touch $@
