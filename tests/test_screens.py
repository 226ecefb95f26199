"""Many classes, long labels and large numbers read well on a screen of 80 or 120 columns."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from mercer.cli import printing, score_screen, worst_rows
from mercer.cli.labels import short, short_labels
from mercer.cli.measuring import is_useless
from mercer.cli.score_screen import measured_lines
from mercer.kernels import Gaussian
from mercer.metrics import measure
from mercer.report import Coverage, Evaluation, RowValues
from mercer.report.confusion import confusion
from mercer.report.coverage import coverage
from mercer.report.worst import worst_labels
from mercer.training.events.console import ConsoleProgress
from mercer.training.history import Epoch

JAPANESE = "これは非常に長い日本語のラベルで、端末での幅を確認するためのもので、二行目はありません"
LONG = [
    JAPANESE,
    "Vereinigte Arbeitsgemeinschaft der Donaudampfschifffahrtsgesellschaft (Außenstelle Süd)",
    "שלום עולם זה תווית ארוכה מאוד בעברית שנועדה לבדוק תצוגה מימין לשמאל",
    "a label\nwith a line break and\ttabs, long enough to be too long for any table",
]
# They begin and end alike, and differ by a word in the middle.
ALIKE = [
    f"Department of {subject} and {view} studies, {place} campus of the University of the North"
    for subject in ("Applied Mathematics", "Comparative Literature", "Molecular Biology")
    for view in ("Environmental", "Administrative", "Historical")
    for place in ("Riverside", "Old Town", "Hill", "Harbour", "Island")
]
MANY = [f"family of plants/{i:03d} {'x' * 60} end" for i in range(250)]
NAMES = ("median_income_of_the_households_in_the_block_group", "longitude", "latitude", "age")


@pytest.fixture
def screen(monkeypatch):
    """Prints to a terminal of some columns; returns the lines."""

    def screen(parts, width):
        console = Console(width=width, file=io.StringIO(), highlight=False, markup=False)
        for part in parts:
            console.print(printing.text(part) if isinstance(part, str) else part)
        return [line.rstrip() for line in console.file.getvalue().splitlines()]

    return screen


def lines(screen, monkeypatch, evaluation, measures, width):
    for module in (score_screen, worst_rows):
        monkeypatch.setattr(module, "screen_width", lambda: width)
    return screen(measured_lines(measures, evaluation), width)


def evaluated(labels, rng, m=600):
    """Predictions of which a tenth are wrong."""
    labels = np.array(labels)
    code = rng.integers(0, len(labels), m)
    guess = np.where(rng.random(m) < 0.1, rng.integers(0, len(labels), m), code)
    p = np.full((m, len(labels)), 1e-7)
    p[np.arange(m), guess] = 1 - 1e-7 * (len(labels) - 1)
    values = {i + 1: (8.325, -122.23, 37.88, "very old " * 9) for i in range(m)}
    order = np.argsort(labels)
    rows, known = np.arange(1, m + 1), RowValues(NAMES, values)
    found = Evaluation(labels[code], labels[guess], p[:, order], rows, "a.csv", values=known)
    classes = np.sort(labels)
    return found, measure("classification", found.y, found.predicted, p[:, order], classes)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("labels", [LONG, MANY, ALIKE])
def test_classes_and_mistakes_take_one_line_each(screen, monkeypatch, rng, labels, width):
    found = lines(screen, monkeypatch, *evaluated(labels, rng), width)
    assert max(cell_len(line) for line in found) <= width
    table = next(i for i, line in enumerate(found) if line.startswith("class "))
    shown = min(len(labels), score_screen.MOST_CLASSES_LISTED)
    body = found[table + 1 : table + 1 + shown]
    assert all("%" in line for line in body)  # none is continued on another line
    assert len({line.split("  ")[0] for line in body}) == shown  # labels can be told apart
    assert found[table + 1 + shown].startswith("… and 2" if len(labels) > 20 else "")
    head = next(i for i, line in enumerate(found) if "predicted" in line and "probability" in line)
    mistakes = found[head + 1 : head + 1 + worst_rows.WORST_ON_SCREEN]
    if width == 80:
        assert all("> 99.9 %" in line.replace("\xa0", " ") for line in mistakes)  # never certain
    below = "\n".join(found[head:])
    assert "longitude −122.2" in below  # values are whole, if their names are not
    assert "8.325" in below


def test_labels_are_shortened_to_columns_of_the_screen_and_keep_both_ends():
    for label in LONG:
        assert cell_len(short(label, 24)) <= 24
        assert "\n" not in short(label, 200)
    assert short(LONG[1], 24).endswith("Süd)")
    names = short_labels([*MANY, "family of plants/short"])
    assert names.at(MANY[17], 12) == "…017 xx… end"
    assert names.at("family of plants/short", 22) == "family of plants/short"
    assert names.at("a label of another table", 12) == "a label…able"
    assert short_labels([]).at("a label of no table", 12) == "a label…able"


@pytest.mark.parametrize("width", [20, 24, 30, 70])
def test_labels_that_differ_in_the_middle_can_be_told_apart(width):
    names = short_labels(ALIKE)
    shown = [names.at(label, width) for label in ALIKE]
    assert len(set(shown)) == len(ALIKE)
    assert max(map(cell_len, shown)) <= width


def test_labels_that_differ_in_the_middle_can_be_told_apart_in_the_report(rng):
    found, _ = evaluated(ALIKE, rng)
    for page in (confusion(np.array(ALIKE), found), worst_labels(found)):
        shown = set(re.findall("<bdi>(.*?)</bdi>", page)) - {"(empty)"}
        clear = [label for label in shown if sum(_fits(label, whole) for whole in ALIKE) <= 1]
        assert len(clear) == len(shown)


def _fits(shown, whole):
    """Whether a shortened label may be that label."""
    parts = [re.escape(part) + r"\w*" for part in re.split("[… ]+", shown) if part]
    return re.search(r"\b" + r"\b.*\b".join(parts), whole) is not None


def test_the_labels_of_a_matrix_can_be_told_apart(rng):
    labels = [f"species number {i:03d} of the great northern catalogue, subspecies a" for i in range(40)]
    found, _ = evaluated(labels, rng)
    page = confusion(np.array(labels), found)
    shown = page.split('<tr><th scope="row"')[1:]
    assert len({row.split("</bdi>")[0].split("<bdi>")[1] for row in shown}) == len(shown) == 10


@pytest.mark.parametrize(
    ("scale", "shown"), [(1.0, "450,000"), (1e4, "4,500,000,000"), (1e-15, "4.5×10⁻¹⁰")]
)
def test_large_numbers_have_marks_between_thousands(screen, monkeypatch, rng, scale, shown):
    y = np.append(rng.normal(3e5, 1e4, 50), 450_000.0) * scale
    predicted = np.append(y[:-1], 0.0)
    found = Evaluation(y, predicted, None, np.arange(1, 52), "a.csv")
    text = "\n".join(lines(screen, monkeypatch, found, measure("regression", y, predicted), 80))
    assert shown in text
    assert "e+" not in text


def test_losses_and_bandwidths_have_no_exponent_either():
    stream = io.StringIO()
    ConsoleProgress(stream).on_epoch(Epoch(1, 3.956e8, None, None, 0.1, 1.0, 0))
    assert "train loss 395,600,000" in stream.getvalue()
    assert str(Gaussian(73_320.0)) == "gaussian (bandwidth 73,320)"
    assert str(Gaussian(0.0312345)) == "gaussian (bandwidth 0.03123)"


def test_a_rare_class_that_is_ranked_well_is_not_useless(rng):
    y = np.where(np.arange(1000) < 10, "yes", "no")
    never = np.full(1000, "no")
    classes = np.array(["no", "yes"])
    for p, useless in ((0.01 + 0.3 * (y == "yes"), False), (rng.uniform(0, 0.4, 1000), True)):
        measures = measure("classification", y, never, np.column_stack([1 - p, p]), classes)
        assert measures.lopsided
        assert is_useless(measures) == useless


def test_intervals_of_one_width_have_no_table_of_widths(rng):
    y = rng.normal(1e9, 1e8, 400)
    widths = (y + 2e8) - y  # equal up to rounding
    assert len(np.unique(widths)) > 1
    found = Coverage(0.9, rng.random(400) < 0.9, widths)
    evaluation = Evaluation(y, y, None, np.arange(1, 401), "a.csv", coverage=found)
    assert "<table" not in coverage(evaluation)
    wider = replace(evaluation, coverage=replace(found, widths=widths * rng.uniform(1, 2, 400)))
    assert "<table" in coverage(wider)


def test_every_row_is_in_the_table_of_set_sizes(rng):
    sizes = rng.integers(1, 40, 500)
    found = Coverage(0.9, rng.random(500) < 0.9, sizes)
    y, p = np.zeros(500), np.full((500, 40), 1 / 40)
    page = coverage(Evaluation(y, y, p, np.arange(1, 501), "a.csv", coverage=found))
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", page)
    assert [cells[i] for i in range(0, len(cells), 3)] == ["1", "2", "3", "4", "5 to 39"]
    assert sum(int(cells[i]) for i in range(1, len(cells), 3)) == 500
