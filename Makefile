# make train | make test | make check | make bench. Set-up happens once, in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Only what is imported gets compiled, when it is: compiling all of every package takes longer.
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q --no-compile

.PHONY: help train test check format bench clean

help:
	@echo "make train   set up, then train ACPO on the built-in dataset (under five minutes)"
	@echo "make test    set up, then run all tests (under ten minutes)"
	@echo "make check   ruff, formatting, types"
	@echo "make bench   updates per second beside d3rlpy (installs it in .venv-bench)"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Stamps: a second run installs nothing unless a requirement changed.
$(VENV)/train.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -c constraints.txt -e .
	touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/train.stamp

train: $(VENV)/train.stamp
	$(BIN)/acpo train --steps 20000

# A worker that crashes is not replaced: pytest-xdist may wait for ever for the one that takes over.
test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

check: $(VENV)/dev.stamp
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy

format: $(VENV)/dev.stamp
	$(BIN)/ruff check --fix src tests
	$(BIN)/ruff format src tests

# d3rlpy pins an older gymnasium, so the peer gets an environment of its own.
.venv-bench/bench.stamp: pyproject.toml constraints-bench.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip --disable-pip-version-check install -q -c constraints-bench.txt torch
	.venv-bench/bin/python -m pip --disable-pip-version-check install -q -c constraints-bench.txt -e '.[bench]'
	touch $@

bench: .venv-bench/bench.stamp
	.venv-bench/bin/acpo bench speed --json bench-speed.json

clean:
	rm -rf $(VENV) .venv-bench build *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
