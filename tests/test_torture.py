"""The torture run: its parts are found, its failures are seen, and its laws can be broken."""

from __future__ import annotations

import ast
import copy
import doctest
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from benchmarks.torture import __main__ as runner
from benchmarks.torture import datasets, fits, load, solutions
from benchmarks.torture.record import Count, Size
from mercer import KernelRegressor


def stand_in(monkeypatch, run):
    """A part instead of `fits`."""
    module = ModuleType("benchmarks.torture.fits")
    module.run = run
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_every_part_is_in_the_table():
    folder = Path(runner.__file__).parent
    defined = {
        path.stem
        for path in folder.glob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == "run"
    }
    assert defined >= {"fits", "solutions", "threads", "load"}
    assert defined <= set(runner.PARTS)


def test_examples_in_docstrings_run():
    assert doctest.testmod(runner).failed == 0


def test_a_run_without_failures_ends_with_0_and_writes_its_counts(monkeypatch, tmp_path, capsys):
    sizes = []

    def run(size):
        sizes.append(size)
        return [Count("water is wet", 7, note="of course")]

    stand_in(monkeypatch, run)
    assert runner.main(["--parts", "fits", "--quick", "--out", str(tmp_path / "out.json")]) == 0
    assert sizes == [Size(1 / 6, 0)]
    assert "water is wet: 7 cases, none failed (of course)" in capsys.readouterr().out
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["parts"]["fits"]["counts"][0]["cases"] == 7


def test_a_failure_is_named_and_ends_with_1(monkeypatch, capsys):
    stand_in(monkeypatch, lambda size: [Count("water is dry", 9, tuple(f"case {i}" for i in range(9)))])
    assert runner.main(["--parts", "fits"]) == 1
    out = capsys.readouterr().out
    assert "9 cases, 9 FAILED" in out
    assert "case 4\n" in out
    assert "and 4 more" in out


def test_a_part_that_cannot_run_is_a_failure(monkeypatch, capsys):
    def run(size):
        raise OSError("no disk")

    stand_in(monkeypatch, run)
    assert runner.main(["--parts", "fits"]) == 1
    assert "OSError: no disk" in capsys.readouterr().out


@pytest.mark.parametrize("name", datasets.ROWS)
def test_rows_are_repeated_as_asked(name, rng):
    table = datasets.ROWS[name](datasets.pool("diabetes"), 300, rng)
    assert 100 <= len(table.X) == len(table.y) <= 300
    distinct = len(np.unique(table.X, axis=0))
    assert (distinct == len(table.X)) == (name in {"plain", "near_duplicates", "constant_targets"})


@pytest.fixture(scope="module")
def fitted():
    case = fits.Case.draw(0, 0)
    case = replace(case, data="diabetes", rows="plain", n=150, kernel="laplacian", width=1.0, ridge=0.0)
    case = replace(case, X_scale=1.0, X_offset=0.0, y_scale=1.0, y_offset=0.0, early_stopping=False)
    case = replace(case, precision="float64", single_inputs=False, tolerance=1e-4, max_iter=100)
    table = case.table()
    return case, case.estimator(table.X).fit(table.X, table.y), table


def test_a_case_is_the_same_whenever_it_is_drawn():
    assert fits.Case.draw(3, 14) == fits.Case.draw(3, 14) != fits.Case.draw(3, 15)


def test_a_sound_model_breaks_no_law(fitted):
    assert fitted[1].stop_reason_ in fits.CLAIMS
    assert list(fits.broken_laws(*fitted)) == []


@pytest.mark.parametrize(("factor", "law"), [(-2.0, fits.TRAINING), (0.9, fits.HONEST)])
def test_a_model_that_breaks_a_law_is_found(fitted, factor, law):
    case, model, table = fitted
    wrong = copy.copy(model)
    wrong.machine_ = replace(model.machine_, alpha=model.machine_.alpha * factor)
    assert law in [name for name, _ in fits.broken_laws(case, wrong, table)]


def test_weights_that_are_not_finite_are_found(fitted):
    case, model, table = fitted
    wrong = copy.copy(model)
    wrong.dual_coef_ = model.dual_coef_ * np.nan
    assert [name for name, _ in fits.broken_laws(case, wrong, table)] == [fits.FINITE]


def test_an_error_is_a_failure_of_its_case(fitted, monkeypatch):
    def crash(self, X, y):
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr(KernelRegressor, "fit", crash)
    outcome = fits.attempt(fitted[0])
    assert [law for law, _ in outcome.broken] == [fits.NO_ERROR]
    assert "ZeroDivisionError: of all things" in outcome.broken[0][1]


def test_a_converged_model_agrees_with_the_dense_solution_and_a_wrong_one_does_not(monkeypatch):
    case = solutions.Case(0, 0, "diabetes", 80, "laplacian", 1.0, 0.01, "float64")
    found = solutions.compare(case)
    assert found.converged
    assert found.worst <= 1
    assert found.bound < 1e-3
    right = KernelRegressor.predict
    monkeypatch.setattr(KernelRegressor, "predict", lambda self, X: 1.01 * right(self, X))
    assert solutions.compare(case).worst > 1


def test_growing_memory_is_a_failure():
    flat = [500 * load.MIB] * load.FEWEST_CYCLES
    assert load._memory(flat).failures == ()
    assert load._memory([r + 3 * i * load.MIB for i, r in enumerate(flat)]).failures != ()
