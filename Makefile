# make demo, make test: everything on a fresh machine with Python >= 3.10, pip and make.
PYTHON ?= python3
BIN := .venv/bin
# Where the real datasets are; what needs them skips with a message when they are not there.
export MERCER_DATA ?= $(abspath ../shared/data)

.PHONY: demo test slow check lint types format bench paper docs clean

demo: .venv/ready
	$(BIN)/python examples/digits.py

test: .venv/ready
	$(BIN)/python -m pytest -q

slow: .venv/ready
	$(BIN)/python -m pytest -q -m slow

check: lint types test

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready
	$(BIN)/mypy

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Made when missing, and made anew when what it was made from has changed.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# scikit-learn-intelex is compared with, and not needed for anything else.
bench: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks/engine.py --out benchmarks/engine.json
	$(BIN)/python benchmarks/defaults.py --out benchmarks/defaults.json

# Every table and figure of the paper beside ours, and docs/paper.md; SIZE=--full for the paper's sizes.
SIZE ?= --quick
paper: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[paper]'
	$(BIN)/python -m benchmarks.paper $(SIZE)

# The user guide, to be opened at site/index.html; its search box needs a server: mkdocs serve.
docs: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/mkdocs build --strict --site-dir site

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache build dist site
