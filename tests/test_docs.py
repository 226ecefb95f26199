"""The examples on the pages run, and the tables of names are complete."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
from sklearn.datasets import load_iris
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor

import mercer

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def examples(page: Path) -> list[str]:
    """The Python blocks of a page, padded so that errors show the page's line numbers."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return ["\n" * text.count("\n", 0, match.start(1)) + match[1] for match in found]


TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
# Those of the tutorials run in test_tutorials.py, which also compares what they print.
PAGES_WITH_EXAMPLES = [page for page in PAGES if page not in TUTORIALS and examples(page)]


@pytest.mark.parametrize("page", PAGES_WITH_EXAMPLES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    plt = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    try:
        for example in examples(page):
            exec(compile(example, str(page), "exec"), namespace)
    finally:
        plt.close("all")


def test_every_public_name_is_shown_or_described():
    shown = "\n".join(example for page in PAGES for example in examples(page))
    described = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", shown)) | set(re.findall(r"^::: mercer\.(\w+)$", described, re.M))
    assert not set(mercer.__all__) - words


NAMES = ROOT / "docs" / "guide" / "names.md"
FAMILIES = {
    "HGB": (HistGradientBoostingClassifier, HistGradientBoostingRegressor),
    "MLP": (MLPClassifier, MLPRegressor),
    "SGD": (SGDClassifier, SGDRegressor),
}


def table_rows(heading):
    """The cells of the table below a heading of the page of names."""
    section = NAMES.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.+) \|$", section, re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")] for row in rows]


def quoted(cell):
    return re.findall(r"`(\w+)`", cell)


def test_table_of_parameters_has_every_parameter_and_its_default():
    rows = table_rows("Parameters")
    parameters = mercer.KernelClassifier().get_params()
    signature = inspect.signature(mercer.KernelClassifier)
    assert {quoted(row[0])[0] for row in rows} == set(signature.parameters)
    assert len(rows) == len(parameters)
    for name, default, *_ in rows:
        assert ast.literal_eval(default.strip("`")) == parameters[quoted(name)[0]]


def test_counterparts_in_the_table_are_all_that_scikit_learn_has():
    known = {
        family: set().union(*(estimator().get_params() for estimator in estimators))
        for family, estimators in FAMILIES.items()
    }
    for row in table_rows("Parameters"):
        counterparts = re.findall(r"`(\w+)` \((.+?)\)", row[-1])
        assert bool(counterparts) != (row[-1] == "–")
        for name, families in counterparts:
            assert all(name in known[family] for family in families.split(", "))
        same = {family for family in FAMILIES if quoted(row[0])[0] in known[family]}
        assert same <= {family for _, families in counterparts for family in families.split(", ")}


def test_table_of_attributes_has_every_attribute_of_a_fitted_model():
    X, y = load_iris(return_X_y=True, as_frame=True)
    model = mercer.KernelClassifier(random_state=0).fit(X, y)
    public = {name for name in vars(model) if name.endswith("_") and not name.startswith("_")}
    listed = {name for row in table_rows("Attributes of a fitted model") for name in quoted(row[0])}
    assert listed == public
