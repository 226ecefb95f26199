"""What is imported by the time a name is available, in fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

OPTIONAL = ("matplotlib", "typer", "rich", "polars")
# One process runs these after one another, so PyTorch is imported once.  What a later statement may not
# import, no earlier one may either.
STATEMENTS = {
    "import mercer": (*OPTIONAL, "torch", "numpy", "sklearn"),
    "mercer.Gaussian": (*OPTIONAL, "sklearn", "scipy", "pandas", "mercer.displays"),
    "import mercer.engine": (*OPTIONAL, "sklearn", "mercer.displays"),
    "mercer.KernelClassifier": ("matplotlib", "typer", "polars", "mercer.displays"),
    "import mercer.report": ("matplotlib", "typer", "polars", "mercer.displays"),
    "mercer.LearningCurveDisplay": ("matplotlib", "typer", "polars"),
}


def modules_after(*statements: str) -> list[set[str]]:
    """The modules that a fresh process has imported after each of the statements."""
    shown = "print(json.dumps(list(sys.modules)))"
    lines = ["import json, sys", *(line for each in statements for line in (each, shown))]
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [set(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def modules() -> dict[str, set[str]]:
    return dict(zip(STATEMENTS, modules_after(*STATEMENTS), strict=True))


@pytest.mark.parametrize("statement", STATEMENTS)
def test_nothing_is_imported_that_is_not_needed(modules, statement):
    assert not modules[statement] & set(STATEMENTS[statement])


def test_tables_are_read_without_pytorch():
    (modules,) = modules_after(
        "import mercer.tables.formats, mercer.tables.survey, mercer.tables.arrays"
    )
    assert "torch" not in modules
