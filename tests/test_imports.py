"""What is imported by the time a name is available, in a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

OPTIONAL = ("matplotlib", "typer", "rich", "polars")


def imported(script: str, names: tuple[str, ...]) -> list[str]:
    """Those of the modules `names` that are imported once a script has run."""
    shown = f"import json, sys; print(json.dumps([m for m in {names!r} if m in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", f"{script}\n{shown}"], capture_output=True, text=True, check=True
    )
    return list(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("script", "absent"),
    [
        ("import mercer", (*OPTIONAL, "torch", "numpy", "sklearn")),
        ("import mercer; mercer.Gaussian", (*OPTIONAL, "sklearn", "scipy", "pandas", "mercer.displays")),
        ("import mercer; mercer.KernelClassifier", ("matplotlib", "typer", "polars", "mercer.displays")),
        ("import mercer; mercer.LearningCurveDisplay", ("matplotlib", "typer", "polars")),
        ("import mercer.report", ("matplotlib", "typer", "polars", "mercer.displays")),
        ("import mercer.tables.formats, mercer.tables.survey, mercer.tables.arrays", ("torch",)),
    ],
)
def test_nothing_is_imported_that_is_not_needed(script, absent):
    assert imported(script, absent) == []
