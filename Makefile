# Every target works on a clean clone: it installs what it needs into .venv first.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
# One thread a process: two cores are shared by the tests, and one thread is repeatable.
export OMP_NUM_THREADS ?= 1

.PHONY: help install train test lint bench study docs clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | \
	  while IFS='|' read -r name what; do printf '%-9s %s\n' "$$name" "$$what"; done

install: $(VENV)/.installed ## the package in .venv
$(VENV)/.installed: pyproject.toml
	@echo "installing carousel with torch and Avalanche into $(VENV): a minute or two"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[data,test]"
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing the tools of developers into $(VENV)"
	$(BIN)/python -m pip install --quiet --editable ".[data,dev]"
	touch $@

train: $(VENV)/.installed ## Experience Replay with a carousel on real images, about a minute
	$(BIN)/carousel train --strategy er --out runs/first --fresh

test: $(VENV)/.installed ## the whole test suite
	$(BIN)/python -m pytest

lint: $(VENV)/.installed-dev ## style, types, and the floors of the house
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed ## the quick benchmarks: ratios against limits and peers
	$(BIN)/python -m benchmarks

study: $(VENV)/.installed ## the accuracy studies: several hours, resumable
	$(BIN)/python -m benchmarks.accuracy_er --json docs/results/accuracy_er.json
	$(BIN)/python -m benchmarks.accuracy_seven --json docs/results/accuracy_seven.json
	$(BIN)/python -m benchmarks.baseline_fidelity --json docs/results/baseline_fidelity.json
	$(BIN)/python -m benchmarks.sensitivity --json docs/results/sensitivity.json

docs: $(VENV)/.installed-dev ## the documentation as a site in ./site
	$(BIN)/mkdocs build --strict

clean: ## what the targets made, but for runs and storages
	rm -rf $(VENV) build site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
