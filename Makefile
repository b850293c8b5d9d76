# `make demo` and `make test` need Python 3.11 or newer and nothing else; both install into .venv.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TESTERS ?= 3 # processes that run tests: most of these wait for servers and workers, so two cores carry three

.PHONY: help venv demo test lint format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "%-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(VENV)/.test ## the virtual environment with everything that the checks need

demo: $(VENV)/.demo ## ingest our documents through real workers, search them, show what comes back
	$(BIN)/ditto-tasks demo

test: lint ## every check, then every test; the tests start the servers that they need
	$(BIN)/pytest --numprocesses $(TESTERS) --dist loadscope

lint: $(VENV)/.test ## style, types, and who imports whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/typing/api.py
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.test ## put the code into form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the virtual environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[embedded]'
	touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@ $(VENV)/.demo
