# Two commands for a new user: `make demo` and `make test`. Each sets up everything it needs.
PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
# torch first: anything that depends on it then finds the CPU build already there.
TORCH  ?= torch==2.13.0

.PHONY: demo test test-slow check format clean setup

$(VENV)/.base: pyproject.toml CMakeLists.txt $(wildcard src/codtdq/native/csrc/*)
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(PY) -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.test: $(VENV)/.base
	$(PY) -m pip install --quiet --disable-pip-version-check -e ".[test]"
	touch $@

$(VENV)/.dev: $(VENV)/.test
	$(PY) -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@

setup: $(VENV)/.base

demo: $(VENV)/.base
	$(PY) -m codtdq demo

test: $(VENV)/.test
	$(PY) -m pytest

test-slow: $(VENV)/.test
	$(PY) -m pytest -m slow

check: $(VENV)/.dev
	$(VENV)/bin/ruff check src tests
	$(VENV)/bin/ruff format --check src tests
	$(VENV)/bin/mypy

format: $(VENV)/.dev
	$(VENV)/bin/ruff check --fix src tests
	$(VENV)/bin/ruff format src tests

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache
