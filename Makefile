# make demo and make test work on a fresh machine with Python >= 3.10, pip and make.
PYTHON ?= python3
BIN := .venv/bin
# Folder of the real datasets; tests and benchmarks that need them are skipped without it.
export MERCER_DATA ?= $(abspath ../shared/data)

.PHONY: demo test slow check lint types format bench paper torture layers docs clean

demo: .venv/ready
	$(BIN)/python examples/demo.py

# Tests that run at the same time; each of them may use several threads for a moment.
JOBS ?= 2
test: .venv/ready
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

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

# Created if missing, and again when the files it depends on have changed.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# The other libraries are needed for the comparison only. It takes hours, and can be stopped and continued.
bench: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks/engine.py --out benchmarks/engine.json
	$(BIN)/python -m benchmarks.defaults --out benchmarks/defaults.json

# Reproduces the paper's tables and figures and writes docs/paper.md; SIZE=--full for the paper's sizes.
SIZE ?= --quick
paper: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[paper]'
	$(BIN)/python -m benchmarks.paper $(SIZE)

# Hard cases by the thousand, and laws that each must obey; QUICK=1 for a sixth of them.
torture: .venv/ready
	$(BIN)/python -m benchmarks.torture $(if $(QUICK),--quick) --out benchmarks/torture.json

# The drawing and the lists of files in docs/design.md.
layers: .venv/ready
	$(BIN)/python docs/import_graph.py --write

# The site; open site/index.html. The search box needs a server: mkdocs serve.
docs: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/mkdocs build --strict --site-dir site

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache build dist site
