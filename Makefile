# make demo   the main job, on the embedded model     make test   everything CI checks
# make lint   ruff and mypy                            make bench  the benchmarks of docs/log.md
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made-by-make

.PHONY: help setup demo test lint bench lock clean

help:
	@sed -n '1,2s/^# //p' Makefile

setup: $(STAMP)

# The first Python from 3.11 on that really runs (a pyenv shim may be there and not run).
$(STAMP): pyproject.toml constraints.txt
	@python=""; for p in $${PYTHON:-python3} python3.11 python3.12 python3.13 python3.14 python; do \
	  if "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$p; break; fi; \
	done; \
	if [ -z "$$python" ]; then echo "Personae needs Python 3.11 or later; set PYTHON=..." >&2; exit 1; fi; \
	echo "setup: $$($$python --version) -> $(VENV)"; \
	"$$python" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: \
	  -c constraints.txt hatchling editables
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --prefer-binary \
	  --no-build-isolation -c constraints.txt -e '.[local,train,serve,dev]'
	@touch $@

demo: setup
	$(BIN)/personae demo --out runs/demo

test: lint
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[local,train,serve,dev,bench]'
	$(BIN)/python benchmarks/run_all.py

# Writes constraints.txt anew from a fresh environment with everything that CI and bench install.
# torch 2.13.0 is a build for CPUs in our registry; a newer one brings gigabytes of CUDA along.
lock:
	rm -rf .lock && python3 -m venv .lock
	.lock/bin/python -m pip install --quiet --upgrade pip
	.lock/bin/python -m pip install --quiet 'torch==2.13.0' hatchling editables '.[local,train,serve,dev,bench]'
	.lock/bin/python -m pip freeze --all --exclude personae --exclude pip --exclude setuptools \
	  | sed "s|+cpu$$||" > constraints.txt
	rm -rf .lock

clean:
	rm -rf $(VENV) .lock .mypy_cache .pytest_cache .ruff_cache .hypothesis
