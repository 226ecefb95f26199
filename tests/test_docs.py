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


# Characters of a line of code that fit at laptop width; tests/test_site.py measures it in a browser.
WIDEST_LINE = 96


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_block_has_lines_too_long_for_a_laptop(page):
    blocks = re.findall(r"^```.*\n((?:.*\n)*?)```$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert [line for block in blocks for line in block.splitlines() if len(line) > WIDEST_LINE] == []


def test_links_of_the_readme_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    inside = [link for link in links if not link.startswith("https://")]
    assert len(inside) > 10
    assert [link for link in inside if not (ROOT / link).exists()] == []


TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
# Pages that show what their examples print, which test_tutorials.py runs and compares.
SHOW_OUTPUT = [*filter(examples, TUTORIALS), ROOT / "docs" / "guide" / "plan.md"]
PAGES_WITH_EXAMPLES = [page for page in PAGES if page not in SHOW_OUTPUT and examples(page)]


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


def test_every_parameter_has_a_section_with_its_default_and_when_to_touch_it():
    page = (ROOT / "docs" / "guide" / "parameters.md").read_text(encoding="utf-8")
    parts = re.split(r"^### (\w+)$", page.split("## Arguments of fit")[0], flags=re.MULTILINE)
    described = dict(zip(parts[1::2], parts[2::2], strict=True))
    parameters = mercer.KernelClassifier().get_params()
    assert len(parts[1::2]) == len(described)
    assert set(described) == set(parameters)
    for name, text in described.items():
        default = re.search(r"Default `(.+?)`\. (\w.+)", text)
        assert ast.literal_eval(default[1]) == parameters[name], name
        assert text.count("**Touch it**") == 1, name


def test_every_argument_of_fit_is_in_the_table():
    page = (ROOT / "docs" / "guide" / "parameters.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.+?) \|", page.split("## Arguments of fit")[1], re.MULTILINE)
    listed = [name for cell in rows for name in quoted(cell)]
    taken = list(inspect.signature(mercer.KernelClassifier.fit).parameters)[1:]
    assert listed == taken


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


COMING_FROM = ROOT / "docs" / "guide" / "coming_from.md"


def names_of_others(heading):
    """The names in the first column of the first table below a heading."""
    section = COMING_FROM.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    return {name for cell in cells for name in re.findall(r"`(\w+)[`=]", cell)}


def test_names_of_scikit_learn_on_the_page_for_its_users_exist():
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC, SVR

    used = (SVC, SVR, KernelRidge, StandardScaler, CalibratedClassifierCV)
    known = {one.__name__ for one in used} | {"sample_weight", "predict_proba", "dual_coef_"}
    known |= {name for one in (SVC(), SVR(), KernelRidge()) for name in one.get_params()}
    assert names_of_others("SVC, SVR and kernel ridge") <= known


def test_names_of_lightgbm_on_the_page_for_its_users_exist():
    lightgbm = pytest.importorskip("lightgbm")
    known = set(lightgbm.LGBMRegressor().get_params())
    known |= set(inspect.signature(lightgbm.LGBMRegressor.fit).parameters)
    known |= {"early_stopping", "feature_importances_", "alpha", "fit"}
    assert hasattr(lightgbm, "early_stopping")
    assert names_of_others("LightGBM") <= known


def test_table_of_attributes_has_every_attribute_of_a_fitted_model():
    X, y = load_iris(return_X_y=True, as_frame=True)
    model = mercer.KernelClassifier(random_state=0).fit(X, y)
    public = {name for name in vars(model) if name.endswith("_") and not name.startswith("_")}
    listed = {name for row in table_rows("Attributes of a fitted model") for name in quoted(row[0])}
    assert listed == public
