# Every target uses the tools on PATH: activate your environment first.
.DEFAULT_GOAL := help
.PHONY: help install check format test test-ci test-all bench notebooks docs dist test-install lock audit

PYTHON ?= python

# Flower's simulations on a busy machine: Ray gives itself 30 seconds to start, and one in many never ends. Such a test,
# and no other, is begun again; what a page printed until it was stopped is among the warnings.
SIMULATIONS = --reruns 2 --only-rerun "node timed out during startup" --only-rerun "had not ended after"

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: ## Install the package for development into the active environment, with pre-commit hooks
	$(PYTHON) -m pip install --editable ".[dev,docs]"
	pre-commit install

check: ## Formatting, lint, types and layers; changes nothing
	ruff format --check
	ruff check
	mypy
	PYTHONPATH=src lint-imports --no-logo

format: ## Format the code and apply safe lint fixes
	ruff format
	ruff check --fix

test: ## Run the quick tests, one at a time on each core
	$(PYTHON) -m pytest -n auto --dist loadgroup

test-ci: ## Run what CI runs: also the slow tests and those that start real processes
	$(PYTHON) -m pytest -m "not campaign" -n 2 --dist loadgroup --durations=20 $(SIMULATIONS)

test-all: ## Run every test, also campaigns of many minutes
	$(PYTHON) -m pytest -m ""

bench: ## List the performance measurements and how to run one
	@echo "Run one with: $(PYTHON) <file>"; printf '  %s\n' benchmarks/[!_]*.py

notebooks: ## Run the notebooks and keep their new outputs
	jupyter execute --inplace --timeout=900 examples/notebooks/*.ipynb

docs: ## Build the documentation into docs/_build; a warning is an error
	$(PYTHON) -m sphinx -W --keep-going -b html docs docs/_build

dist: ## Build the wheel and the sdist into dist/ and look into them
	rm -rf dist
	$(PYTHON) -m build --outdir dist .
	$(PYTHON) .ci/check_dist.py dist

test-install: dist ## Install the wheel and the sdist into clean environments, with each extra
	PYTHON=$(PYTHON) .ci/install-extras
	PYTHON=$(PYTHON) FROM=sdist .ci/install-extras core

lock: ## Write .ci/requirements.lock anew: what CI installs, with hashes
	.ci/lock

audit: ## Look for known vulnerabilities in what CI installs
	pip-audit --require-hashes --disable-pip --requirement .ci/requirements.lock
