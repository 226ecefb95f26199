"""The report, as text and in a real browser."""

from __future__ import annotations

import copy
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import PHONE, Browser
from scipy.stats import binomtest
from sklearn.datasets import load_diabetes, load_digits
from sklearn.metrics import confusion_matrix, r2_score

from mercer import History, KernelClassifier, KernelRegressor, load
from mercer.estimators.training import set_importances
from mercer.metrics import wilson_interval
from mercer.report import Evaluation, RowValues, write_report
from mercer.report.charts import Axis, Chart
from mercer.report.learning import in_words
from mercer.report.numbers import duration, number
from mercer.report.worst import _first_of
from mercer.tables.columns import Decision

HOSTILE = "</script><img src=x onerror=alert(1)>"


class Page(HTMLParser):
    """A parsed page: its elements, text and tables."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.tables: list[list[list[str]]] = []
        self._skip = self._cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._skip = tag == "style"
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        self._skip = False
        if tag in ("td", "th"):
            self._cell = False

    def handle_data(self, data: str) -> None:
        if self._skip:
            return
        self.text += data
        if self._cell:
            self.tables[-1][-1][-1] += data

    def table(self, *heads: str) -> list[list[str]]:
        """The rows of the table with these column heads."""
        found = [rows[1:] for rows in self.tables if rows[0] == list(heads)]
        assert len(found) == 1, heads
        return found[0]

    def matrix(self) -> list[list[str]]:
        """The confusion matrix: its heads, then its rows."""
        return next(rows[1:] for rows in self.tables if rows[0] == ["", "Predicted"])


SETTINGS: dict[str, Any] = {"random_state": 0}
WORDS = {
    "title": "Digits by their pixels",
    "command": "mercer fit digits.csv --target digit",
    "data_name": "digits.csv",
    "target": "digit",
    "notes": ["3 constant columns were dropped."],
    "timings": {"reading": 0.25, "training": 1.5},
}


def page(path: Path, model: Any, evaluation: Evaluation | None, **words: Any) -> Page:
    write_report(path, model, evaluation, **{**WORDS, **words})
    return Page(path.read_text(encoding="utf-8"))


def evaluate(model: Any, X: Any, y: Any) -> Evaluation:
    probabilities = model.predict_proba(X) if hasattr(model, "predict_proba") else None
    rows = np.arange(1, len(y) + 1)
    return Evaluation(y, model.predict(X), probabilities, rows, "20 % of digits.csv, held out")


@pytest.fixture(scope="module")
def digits() -> tuple[KernelClassifier, Evaluation]:
    """Trained on a few hundred rows, so that there are mistakes."""
    X, y = load_digits(return_X_y=True)
    model = KernelClassifier(early_stopping=True, **SETTINGS).fit(X[:600], y[:600])
    return model, evaluate(model, X[600:], y[600:])


@pytest.fixture(scope="module")
def diabetes() -> tuple[KernelRegressor, Evaluation]:
    X, y = load_diabetes(return_X_y=True)
    model = KernelRegressor(batch_size=300, **SETTINGS).fit(X[:300], y[:300])  # by descent
    return model, evaluate(model, X[300:], y[300:])


@pytest.fixture(scope="module")
def institutions() -> tuple[KernelClassifier, Evaluation]:
    """Sixty classes with names that are long, hostile, empty or in other scripts."""
    rng = np.random.default_rng(0)
    names = np.array(
        [f"Department of Northern and Southern Affairs, {i:02d}" for i in range(60)], object
    )
    names[:5] = [HOSTILE, "産業技術総合研究所", "وزارة التربية", "a\nb\x00\u202e\ud800", ""]
    k = np.tile(np.arange(60), 20)
    X = rng.normal(size=(60, 8))[k] + 0.8 * rng.normal(size=(1200, 8))
    model = KernelClassifier(**SETTINGS).fit(X[:900], names[k[:900]])
    return model, evaluate(model, X[900:], names[k[900:]])


def test_headline_is_the_error_and_the_rows_it_was_measured_on(tmp_path, digits):
    model, evaluation = digits
    wrong, m = int((~evaluation.correct).sum()), len(evaluation.y)
    text = page(tmp_path / "r.html", model, evaluation).text
    assert f"{100 * wrong / m:.1f}\u00a0%error" in text
    assert f"{wrong} of {m:,} rows (20 % of digits.csv, held out) are misclassified" in text


def test_headline_of_numbers_is_r2(tmp_path, diabetes):
    model, evaluation = diabetes
    text = page(tmp_path / "r.html", model, evaluation).text
    assert f"{r2_score(evaluation.y, evaluation.predicted):.3f}R²" in text
    assert "On 142 rows (20 % of digits.csv, held out) the root mean square error" in text


def test_without_evaluation_the_headline_is_the_held_out_result(tmp_path, digits):
    model, _ = digits
    text = page(tmp_path / "r.html", model, None).text
    best = min(model.history_.epochs, key=lambda epoch: epoch.validation_loss)
    assert f"{100 * (1 - best.validation_score):.0f}\u00a0%error" in text
    when = f"with the weights reached at the end of epoch {model.best_epoch_:.0f}"
    assert f"Measured on 60 held-out rows, {when}. The same rows decided when" in text


def test_without_held_out_rows_the_headline_is_the_leave_one_out_score(tmp_path, diabetes):
    model, _ = diabetes
    text = page(tmp_path / "r.html", model, None).text
    assert f"{model.left_out_score_:.3f}R², leave-one-out" in text
    assert "This is leave-one-out on the 300 rows of the search" in text
    assert "The model itself" not in text  # the search saw all rows
    more = load_copy(model, tmp_path)
    more.plan_ = replace(model.plan_, n=5000)
    text = page(tmp_path / "r.html", more, None).text
    assert "The model itself was trained on 5,000 rows" in text


def test_the_page_says_which_rows_chose_the_setting(diabetes):
    model = copy.copy(diabetes[0])
    chosen = model.selection_
    assert "by leave-one-out error on 300 rows" in str(in_words(model, "data", "y"))
    many = replace(chosen.best, n_points=10_000, left_out="rows")
    model.selection_ = replace(chosen, best=many, candidates=(*chosen.candidates, many))
    assert "when trained on 10,000 rows and judged on others" in str(in_words(model, "data", "y"))


def test_one_epoch_without_a_search_is_not_measured(tmp_path):
    X, y = load_digits(return_X_y=True)
    given = {"kernel": "gaussian", "bandwidth": 20.0, "ridge": 0.0}
    model = KernelClassifier(max_iter=1, early_stopping=False, **given, **SETTINGS)
    text = page(tmp_path / "r.html", model.fit(X[:300], y[:300]), None).text
    assert "Not measured" in text
    assert "There was only one epoch" in text
    assert "more epochs may improve the model" in text


def test_training_stopped_within_the_first_epoch_has_no_curve(tmp_path, digits):
    model = load_copy(digits[0], tmp_path)
    model.history_, model.best_epoch_, model.best_loss_ = History(), 0.0, None
    text = page(tmp_path / "r.html", model, None).text
    assert "Training stopped before the end of the first epoch" in text


def circle_and_line(path: Path) -> tuple[tuple[float, float], list[tuple[float, float]]]:
    """The ring of the learning curve, and the points of the held-out loss."""
    chart = re.search(r"<title>Learning curve</title>.*?</svg>", path.read_text(encoding="utf-8"))
    assert chart is not None
    ring = re.search(r'cx="([\d.]+)" cy="([\d.]+)" r="6" class="ring"', chart[0])
    line = re.search(r'd="M([^"]*)" class="line b"', chart[0])
    assert ring is not None
    assert line is not None
    points = [tuple(map(float, point.split())) for point in line[1].split("L")]
    return (float(ring[1]), float(ring[2])), points


def test_ring_and_headline_are_those_of_the_final_weights(tmp_path, digits):
    model, path = load_copy(digits[0], tmp_path), tmp_path / "r.html"
    losses = model.history_.column("validation_loss")
    best = int(np.argmin(losses))
    assert (model.best_epoch_, model.best_loss_) == (best + 1, losses[best])
    text = page(path, model, None).text
    ring, line = circle_and_line(path)
    assert ring == line[best]
    assert re.search(rf"error [\d.]+\s%, reached at the end of epoch {best + 1}\.", text)

    # Weights from within the first epoch, before the loss of any whole epoch.
    model.best_epoch_, model.best_loss_ = 0.375, 0.5 * min(losses)
    text = page(path, model, None).text
    ring, line = circle_and_line(path)
    assert ring[0] < min(x for x, _ in line)
    assert ring[1] > max(y for _, y in line)
    assert f"{number(0.5 * min(losses))}held-out loss (mean squared error)" in text
    assert "with the weights reached after 0.38 epochs" in text

    # Weights of an epoch that was repeated: the history has another loss for it.
    model.best_epoch_, model.best_loss_ = 2.0, 0.9 * min(losses)
    text = page(path, model, None).text
    ring, line = circle_and_line(path)
    assert ring[0] == line[1][0]
    assert ring[1] > line[1][1]
    assert f"{number(0.9 * min(losses))}held-out loss (mean squared error)" in text


def load_copy(model: Any, folder: Path) -> Any:
    model.save(folder / "copy.mercer")
    return load(folder / "copy.mercer")


def test_saved_and_loaded_model_has_the_same_page(tmp_path, digits):
    model, evaluation = digits
    before = page(tmp_path / "a.html", model, evaluation).text
    after = page(tmp_path / "b.html", load_copy(model, tmp_path), evaluation).text
    assert re.sub("Made by.*", "", after) == re.sub("Made by.*", "", before)


def test_text_from_the_data_never_becomes_markup(tmp_path, institutions):
    model, evaluation = institutions
    evaluation = replace(evaluation, rows=np.full(len(evaluation.y), HOSTILE, object), source=HOSTILE)
    words: dict[str, Any] = dict.fromkeys(("title", "command", "data_name", "target"), HOSTILE)
    found = page(
        tmp_path / "r.html", model, evaluation, notes=[HOSTILE], timings={HOSTILE: 1.0}, **words
    )
    plain = page(tmp_path / "p.html", model, institutions[1], notes=["a"], timings={"a": 1.0})
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in plain.tags]
    assert not {"script", "img"} & {tag for tag, _ in found.tags}
    assert all(not name.startswith("on") for _, attributes in found.tags for name in attributes)
    assert found.text.count(HOSTILE) >= 7


def test_the_page_references_nothing_external(tmp_path, digits):
    page(tmp_path / "r.html", *digits)
    html = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|src=|url\(|@import", html)
    assert "default-src 'none'" in Page(html).tags[4][1]["content"]


def test_invisible_characters_are_shown_as_escapes(tmp_path, institutions):
    model, evaluation = institutions
    text = page(
        tmp_path / "r.html", model, evaluation, notes=["a\nb\x00\u202e\ud800", "नमस्ते \u200d👩\u200d🔬"]
    ).text
    assert "a\\nb\\x00\\u202e\\ud800" in text
    assert "नमस्ते \u200d👩\u200d🔬" in text


def test_confusion_matrix_counts_as_scikit_learn_does(tmp_path, digits):
    model, evaluation = digits
    heads, *rows = page(tmp_path / "r.html", model, evaluation).matrix()
    assert heads == ["True", *"0123456789", "recall", "rows"]
    expected = confusion_matrix(evaluation.y, evaluation.predicted)
    np.testing.assert_array_equal([[int(cell) for cell in row[1:11]] for row in rows], expected)
    assert [int(row[-1]) for row in rows] == expected.sum(1).tolist()


def test_for_many_classes_the_most_confused_are_shown(tmp_path, institutions):
    model, evaluation = institutions
    found = page(tmp_path / "r.html", model, evaluation)
    heads, *rows = found.matrix()
    assert 2 <= len(rows) <= 10
    assert heads[-3:] == ["other", "recall", "rows"]
    assert all(sum(map(int, row[1:-2])) == int(row[-1]) for row in rows)
    pairs = found.table("True", "Predicted", "Rows", "Share of the class")
    counts = confusion_matrix(evaluation.y, evaluation.predicted)
    np.fill_diagonal(counts, 0)
    assert [int(pair[2]) for pair in pairs] == np.sort(counts.ravel())[::-1][:8].tolist()


def test_a_class_unknown_to_the_model_has_its_own_row(tmp_path, digits):
    model, evaluation = digits
    y = evaluation.y.copy()
    y[:5] = 77
    heads, *rows = page(tmp_path / "r.html", model, replace(evaluation, y=y)).matrix()
    assert heads[11] == rows[-1][0] == "77"
    assert rows[-1][-2:] == ["0\u00a0%", "5"]


def test_worst_mistakes_are_the_most_confident(tmp_path, digits):
    model, evaluation = digits
    rows = page(tmp_path / "r.html", model, evaluation).table("Row", "True", "Predicted", "Probability")
    wrong = np.flatnonzero(evaluation.y != evaluation.predicted)
    order = wrong[np.argsort(-evaluation.probabilities.max(1)[wrong], kind="stable")][:15]
    assert [int(row[0]) for row in rows] == evaluation.rows[order].tolist()
    assert [int(row[1]) for row in rows] == evaluation.y[order].tolist()
    assert [int(row[2]) for row in rows] == evaluation.predicted[order].tolist()
    assert rows[0][3] == f"{100 * evaluation.probabilities[order[0]].max():.1f}\u00a0%"


def test_without_probabilities_there_is_no_calibration(tmp_path, digits):
    model, evaluation = digits
    found = page(tmp_path / "r.html", model, replace(evaluation, probabilities=None))
    assert found.table("Row", "True", "Predicted")
    assert "Calibration" not in found.text


def test_worst_predictions_have_the_largest_residuals(tmp_path, diabetes):
    model, evaluation = diabetes
    heads = ("Row", "True", "Predicted", "Residual", "Residual / RMSE")
    rows = page(tmp_path / "r.html", model, evaluation).table(*heads)
    order = np.argsort(-np.abs(evaluation.y - evaluation.predicted))[:15]
    assert [int(row[0]) for row in rows] == evaluation.rows[order].tolist()
    off = [float(row[3].replace("−", "-")) for row in rows]
    np.testing.assert_allclose(off, (evaluation.y - evaluation.predicted)[order], atol=0.051)


@pytest.mark.parametrize(
    ("confidence", "verdict"),
    [(0.99, "overconfident"), (0.8, "within the sampling error"), (0.6, "underconfident")],
)
def test_calibration_tells_overconfident_from_underconfident(tmp_path, digits, confidence, verdict):
    y = np.zeros(500, int)
    predicted = (np.arange(500) % 5 == 0).astype(int)  # 80 % correct
    probabilities = np.where(np.arange(10) == predicted[:, None], confidence, (1 - confidence) / 9)
    evaluation = Evaluation(y, predicted, probabilities, y + 1, "test.csv")
    assert verdict in page(tmp_path / "r.html", digits[0], evaluation).text


def test_features_are_shown_with_their_shares_names_and_preparation(tmp_path):
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(400, 18)), rng.integers(0, 5, 400), np.ones(400)])
    y = np.sin(2 * X[:, 0]) + (X[:, 18] == 2)
    model = KernelRegressor(categorical_features=[18], **SETTINGS).fit(X, y)
    names = [HOSTILE, *(f"n{i}" for i in range(17)), "colour", "always one"]
    colours = {"colour": ["red", HOSTILE, "blue", "green", "black"]}
    path = tmp_path / "r.html"
    text = page(path, model, None, feature_names=names, categories=colours).text
    html = path.read_text(encoding="utf-8")
    assert "Features" in text
    assert "<img" not in html
    share = model.feature_importances_[0]
    assert f"{100 * share:.1f}\u00a0%" in text
    assert "category: red, " in text
    assert "green, black" in text
    assert "4 others" in text
    assert "1 feature with a single value was dropped (always one)." in text
    assert html.count('class="bar"') == 15 + len(WORDS["timings"])


def test_without_a_metric_the_features_have_importances_by_permutation(tmp_path, digits):
    text = page(tmp_path / "r.html", digits[0], None).text
    assert "shuffled among training rows" in text
    assert re.search(r"features with one value were dropped", text)


def test_without_importances_the_features_are_only_counted(tmp_path, digits):
    model = copy.copy(digits[0])
    set_importances(model, None)
    text = page(tmp_path / "r.html", model, None).text
    assert "All features count alike" in text
    assert re.search(r"constant, dropped: \d+ ", text)


def test_columns_of_the_table_and_values_of_the_worst_rows_are_on_the_page(tmp_path, diabetes):
    model, evaluation = diabetes
    worst = int(evaluation.rows[np.argmax(np.abs(evaluation.residuals))])
    values = RowValues(("income", HOSTILE), {worst: (38880.0, None)})
    decisions = [Decision("income", "number", "'$'"), Decision(HOSTILE, "left out", "a single value")]
    found = page(
        tmp_path / "r.html", model, replace(evaluation, values=values, linear=55.0), decisions=decisions
    )
    assert found.table("Column", "Used as", "Why, and how")[0] == ["income", "number", "'$'"]
    heads = ("Row", "True", "Predicted", "Residual", "Residual / RMSE", "Values")
    rows = found.table(*heads)
    assert rows[0][5].startswith("income 38,880, ")
    assert rows[1][5] == ""
    assert "a linear model 55." in found.text
    many = [Decision(f"c{i}", "number", "") for i in range(30)]
    write_report(tmp_path / "m.html", model, evaluation, **WORDS, decisions=many)
    assert "<summary>All 30 columns</summary>" in (tmp_path / "m.html").read_text(encoding="utf-8")


def test_plan_notes_timings_versions_and_command_are_on_the_page(tmp_path, digits):
    model, evaluation = digits
    text = page(tmp_path / "r.html", model, evaluation).text
    for _, value, _ in model.plan_.rows():
        assert value in text
    assert f"mG{model.plan_.device_batch_size:,}batch the device can use" in text
    for part in ("3 constant columns were dropped.", "reading0.25 s", "total1.8 s", WORDS["command"]):
        assert part in text
    for name in ("Mercer", "Python", "torch", "numpy", "scikit-learn", "device"):
        assert name in text


def test_every_chart_has_a_title_and_colours_of_the_page(tmp_path, digits, diabetes):
    for name, (model, evaluation) in {"a": digits, "b": diabetes}.items():
        page(tmp_path / f"{name}.html", model, evaluation)
        html = (tmp_path / f"{name}.html").read_text(encoding="utf-8")
        charts = re.findall(r"<svg[^>]*role=.*?</svg>", html)
        assert len(charts) == (3 if name == "a" else 4)
        for chart in charts:
            assert re.search("<title>.+?</title><desc>.+?</desc>", chart)
            assert not re.search(r"#[0-9a-f]{3}|(fill|stroke)=|nan|inf", chart)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e12])
@pytest.mark.parametrize("m", [1, 2, 150, 5000])
def test_any_number_of_values_of_any_size_can_be_drawn(tmp_path, diabetes, m, scale):
    rng = np.random.default_rng(0)
    y = scale * rng.normal(size=m)
    evaluation = Evaluation(y, y + 0.1 * scale * rng.normal(size=m), None, np.arange(m), "test.csv")
    page(tmp_path / "r.html", diabetes[0], evaluation)
    assert (tmp_path / "r.html").stat().st_size < 150_000


@pytest.mark.parametrize("value", [0.0, -3.5])
def test_a_constant_target_has_an_error_but_no_r2(tmp_path, diabetes, value):
    y = np.full(20, value)
    found = page(tmp_path / "r.html", diabetes[0], Evaluation(y, y, None, np.arange(20), "test.csv"))
    assert "0RMSE" in found.text
    assert "R²" not in found.text.split("Summary")[0]


def test_without_mistakes_there_is_no_table(tmp_path, digits, institutions):
    for model, evaluation in (digits, institutions):
        perfect = replace(evaluation, predicted=evaluation.y)
        text = page(tmp_path / "r.html", model, perfect).text
        assert f"None: all {len(evaluation.y):,} rows are classified correctly." in text


def test_an_evaluation_needs_arrays_of_equal_length():
    with pytest.raises(ValueError, match=r"of the same length.*Got shapes \[\(3,\), \(2,\)"):
        Evaluation(np.zeros(3), np.zeros(2), None, np.zeros(3), "test.csv")


def test_interrupted_writing_leaves_the_old_page_and_nothing_else(tmp_path, digits, monkeypatch):
    path = tmp_path / "r.html"
    path.write_text("old")

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        page(path, *digits)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["r.html"]


@pytest.mark.parametrize(("hits", "n"), [(0, 10), (3, 40), (40, 40), (123, 10_000)])
def test_interval_is_that_of_scipy(hits, n):
    expected = binomtest(hits, n).proportion_ci(method="wilson")
    np.testing.assert_allclose(wilson_interval(hits, n), (expected.low, expected.high), atol=1e-4)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "values", [[1], [0], [-2, 3], [1, 1.001], [1e-12, 1], [3, 40], [1e5, 1e200], [0, 1e-9], [np.nan]]
)
def test_ticks_are_few_distinct_and_within_the_axis(values, log):
    axis = Axis.around("x", values, log=log)
    places, texts = zip(*axis.ticks(), strict=True)
    assert 2 <= len(places) <= 10
    assert len(set(texts)) == len(texts)
    assert all(axis.low * (1 - 1e-9) <= p <= axis.high * (1 + 1e-9) or abs(p) < 1e-12 for p in places)


def test_epochs_are_marked_in_whole_numbers():
    texts = [text for _, text in Axis.around("epoch", [1, 2, 3], kind="whole").ticks()]
    assert texts == ["1", "2", "3"]


def test_a_line_skips_values_without_a_logarithm():
    chart = Chart(Axis("x", 0, 10), Axis.around("y", [0.0, 0.1, 10], log=True))
    chart.line([0, 5, 10], [0.0, 0.1, 10], "a")
    d = re.search(r'd="(M[^"]*)" class="line a"', chart.markup("t", "d"))
    assert d is not None
    assert d[1].count("L") == 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0042, "4 ms"), (0.25, "0.25 s"), (99.0, "99 s"), (150.0, "2 min"), (7260.0, "2 h 1 min")],
)
def test_durations_have_a_suitable_unit(seconds, text):
    assert duration(seconds) == text


# In a real browser.


@pytest.fixture(scope="module")
def pages(tmp_path_factory, digits, diabetes, institutions) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    fits = {"digits": digits, "diabetes": diabetes, "institutions": institutions}
    for name, (model, evaluation) in fits.items():
        page(folder / f"{name}.html", model, evaluation, notes=[HOSTILE, "word" * 100])
    page(folder / "bare.html", digits[0], None, title="x" * 300, command="y" * 300, notes=[])
    return {path.stem: path for path in folder.glob("*.html")}


NAMES = ["digits", "diabetes", "institutions", "bare"]


@pytest.mark.parametrize("name", NAMES)
def test_the_browser_logs_no_errors_and_loads_only_the_page(browser, pages, name):
    browser.value("0")
    browser.requests()
    browser.log("browser")
    browser.open(pages[name])
    assert browser.value("document.readyState") == "complete"
    assert set(browser.requests()) <= {pages[name].as_uri(), "data:,"}
    assert browser.log("browser") == []


@pytest.mark.parametrize("name", NAMES)
def test_a_phone_shows_the_page_without_scrolling_sideways(browser, pages, name):
    browser.open(pages[name], PHONE, 740)
    assert browser.value("document.documentElement.scrollWidth") == PHONE
    beyond = """[...document.body.querySelectorAll('*')].filter(e => !e.closest('.scroll, svg'))
        .filter(e => e.getBoundingClientRect().right > innerWidth).length"""
    assert browser.value(beyond) == 0
    heights = "[...document.querySelectorAll('svg text')].map(e => e.getBoundingClientRect().height)"
    assert min(browser.value(heights)) > 9


def luminance(colour: str) -> float:
    """Relative luminance of "rgb(r, g, b)", by the web's accessibility guidelines."""
    values = np.array([int(v) for v in re.findall(r"\d+", colour)[:3]]) / 255
    linear = np.where(values <= 0.03928, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def style(browser: Browser, selector: str, name: str) -> str:
    return str(browser.value(f"getComputedStyle(document.querySelector('{selector}')).{name}"))


def test_dark_mode_changes_page_and_charts_and_stays_readable(browser, pages):
    seen = {}
    for dark in (False, True):
        browser.dark(dark)
        browser.open(pages["digits"])
        paper = luminance(style(browser, "body", "backgroundColor"))
        for selector, name in (("body", "color"), (".soft", "color"), ("svg text", "fill")):
            ink = luminance(style(browser, selector, name))
            assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= 4.5
        seen[dark] = (paper, style(browser, "svg .line.a", "stroke"))
    browser.dark(False)
    assert seen[False][0] > 0.9
    assert seen[True][0] < 0.02
    assert seen[False][1] != seen[True][1]


def test_hostile_labels_are_shown_as_text(browser, pages):
    browser.open(pages["institutions"])
    assert browser.value("document.images.length + document.scripts.length") == 0
    assert browser.value("document.body.innerText").count(HOSTILE) >= 2


def test_screen_readers_get_the_titles_of_charts(browser, pages):
    browser.open(pages["diabetes"])
    tree = browser.devtools("Accessibility.getFullAXTree")["nodes"]
    names = [node["name"]["value"] for node in tree if node.get("role", {}).get("value") == "image"]
    assert names == [
        "True against predicted values",
        "Residuals against predicted values",
        "Learning curve",
        "Spectrum of the kernel",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_the_printed_page_is_white_and_short(browser, pages, name, tmp_path):
    browser.dark(True)
    browser.open(pages[name])
    browser.paper(tmp_path / "page.pdf")
    sheets = len(re.findall(rb"/Type\s*/Page\b", (tmp_path / "page.pdf").read_bytes()))
    assert 1 <= sheets <= 6
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.devtools("Emulation.setEmulatedMedia", media="print", features=features)
    assert luminance(style(browser, "body", "backgroundColor")) == 1.0
    browser.dark(False)


def test_a_direct_solution_has_no_learning_curve(tmp_path):
    X, y = load_diabetes(return_X_y=True)
    model = KernelRegressor(**SETTINGS).fit(X[:300], y[:300])
    text = page(tmp_path / "r.html", model, evaluate(model, X[300:], y[300:])).text
    assert "The equations were solved directly" in text
    assert "Nothing was levelled" in text


def test_one_mistake_is_not_counted():
    assert _first_of(1, 1, "mistakes", ", most confident first") == "The only mistake."
    assert _first_of(2, 2, "mistakes", "") == "All 2 mistakes."
    assert _first_of(2, 1_500, "rows", "") == "2 of 1,500 rows."
