"""`mercer explore` without a browser: data sets, runs, the trainer, and who may talk to the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import httpx
import numpy as np
import polars as pl
import pytest
from scipy.spatial.distance import pdist
from sklearn.datasets import load_diabetes, load_digits, load_wine

import mercer
from mercer.cli import choices, exploring, main
from mercer.cli.option_groups import ColumnOptions, FileOptions
from mercer.explorer.bandwidth import Distances
from mercer.explorer.dataset import About, Dataset, image_side, read_dataset, split
from mercer.explorer.launching import Explorer
from mercer.explorer.recipes import as_command, as_python
from mercer.explorer.runs import MOST_BYTES, MOST_PINNED, MOST_RUNS, Runs
from mercer.explorer.server import create_app
from mercer.explorer.session import Session
from mercer.explorer.settings import Settings, first_settings, parse_settings, rows_of
from mercer.explorer.slices import Slicer
from mercer.explorer.sources import from_arrays
from mercer.explorer.trainer import Cancelled, Trainer, Watch
from mercer.files.records import to_data
from mercer.operators.workers import torch_threads, watched

HOSTILE = [
    '<img src=x onerror="document.title=1">',
    "new\nline",
    'it\'s "quoted" $(touch x)',
    "right\u202eleft",
]


def hostile_table(rows: int = 120) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    columns = {name: rng.normal(size=rows) for name in HOSTILE}
    columns["<b>colour</b>"] = rng.choice(["<i>red</i>", "blue\u202e"], size=rows)
    columns["y"] = columns[HOSTILE[0]] + 2 * (columns["<b>colour</b>"] == "blue\u202e") + 0.1
    return pl.DataFrame(columns)


@pytest.fixture(scope="module")
def wine() -> Dataset:
    X, y = load_wine(return_X_y=True)
    return from_arrays(X, np.array(["red", "white", "rosé"])[y], title="wine")


@pytest.fixture(scope="module")
def diabetes() -> Dataset:
    X, y = load_diabetes(return_X_y=True)
    return from_arrays(X, y, title="diabetes")


def read_file(path: Path, **options: Any) -> Dataset:
    choice = choices.data(str(path), ColumnOptions(**options), FileOptions())
    return exploring.read(choice, path.parent)


class NoInbox:
    """Requests of a test: runs that are superseded, and no questions."""

    def __init__(self) -> None:
        self.questions: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self.is_superseded = False
        self.is_stopped = False

    def superseded(self, run: int) -> bool:
        return self.is_superseded

    def stopped(self, run: int) -> bool:
        return self.is_stopped


class InProcess:
    """A trainer in the process of the tests, and what it sent."""

    def __init__(self, data: Dataset, folder: Path) -> None:
        data.write(folder)
        self.inbox, self.sent = NoInbox(), []
        self.trainer = Trainer(folder, self.inbox, self.send)  # type: ignore[arg-type]

    def send(self, event: str, **fields: Any) -> None:
        json.dumps(fields, default=lambda value: value.tolist())
        self.sent.append((event, fields))

    def ended(self) -> dict[str, Any]:
        return next(fields for event, fields in self.sent if event == "ended")

    def parts(self) -> dict[str, Any]:
        return {fields["part"]: fields["data"] for event, fields in self.sent if event == "detail"}


def test_rows_held_out_are_never_trained_on_and_more_rows_contain_fewer(wine):
    few, many = (rows_of(wine, replace(first_settings(wine.about), rows=n)) for n in (20, 60))
    assert not set(wine.held_out) & set(wine.train)
    assert set(few) < set(many) <= set(wine.train)
    assert set(wine.y[few]) == set(wine.y)


def test_a_class_that_is_rare_has_a_row_among_few():
    y = np.array(["often"] * 300 + ["seldom"] * 2)
    data = from_arrays(np.random.default_rng(0).normal(size=(302, 2)), y)
    rows = rows_of(data, replace(first_settings(data.about), rows=10))
    assert set(data.y[rows]) == {"often", "seldom"}
    assert len(rows) == 10


def test_a_data_set_is_read_back_as_it_was_written(tmp_path):
    data = from_arrays(hostile_table().drop("y"), hostile_table()["y"])
    data.write(tmp_path)
    again = read_dataset(tmp_path)
    assert again.about == data.about
    np.testing.assert_array_equal(again.X, data.X)
    assert again.table_columns == data.table_columns


def test_pixels_are_told_from_columns_of_a_table(wine):
    digits = from_arrays(*load_digits(return_X_y=True))
    assert digits.about.side == 8
    shuffled = np.random.default_rng(0).permuted(digits.X, axis=1)
    assert image_side(shuffled, digits.about.fields) == 0
    assert wine.about.side == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": []}, "Choose at least one column"),
        ({"columns": [0, 99]}, "must be numbers of columns"),
        ({"columns": [0, 0]}, "each column once"),
        ({"categories": [0]}, "Only whole numbers"),
        ({"kernel": "__import__"}, "`kernel` must be one of"),
        ({"scale": "huge"}, "`scale` must be one of"),
        ({"ratio": 0.0}, "`ratio` must be between"),
        ({"ridge": -1.0}, "`ridge` must be at least 0"),
        ({"ridge": "NaN"}, "`ridge` must be at least 0"),
        ({"rows": 10**9}, "`rows` must be between"),
        ({"epochs": 0}, "`epochs` must be between"),
        ({"rows": "many"}, "The settings has invalid contents"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_a_sentence(wine, change, message):
    with pytest.raises(ValueError, match=message):
        parse_settings({**to_data(first_settings(wine.about)), **change}, wine.about)


def test_the_bandwidth_is_in_units_of_the_median_distance(diabetes):
    settings = replace(first_settings(diabetes.about), scale="standard", columns=(1, 2, 5))
    X = np.asarray(diabetes.X)[np.sort(diabetes.train[:400])][:, [1, 2, 5]]
    by_hand = np.median(pdist((X - X.mean(0)) / X.std(0)))
    assert Distances(diabetes).median(settings) == pytest.approx(by_hand, rel=1e-3)
    absolute = np.median(pdist((X - X.mean(0)) / X.std(0), "cityblock"))
    found = Distances(diabetes).median(replace(settings, kernel="l1_laplacian"))
    assert found == pytest.approx(absolute, rel=1e-3)


def test_a_run_sends_its_epochs_and_what_it_found(diabetes, tmp_path):
    train = InProcess(diabetes, tmp_path)
    settings = replace(first_settings(diabetes.about), rows=200, ratio=2.0, ridge=0.5)
    train.trainer.fit(1, settings)
    events = [event for event, _ in train.sent]
    order = ["started", "stage", "plan", "epoch", "detail", "ended"]
    assert sorted(order, key=events.index) == order
    parts, ended = train.parts(), train.ended()
    model = mercer.load(tmp_path / "run-1.mercer")
    X, y = diabetes.X[diabetes.held_out], diabetes.y[diabetes.held_out]
    assert parts["held_out"]["score"]["r2"] == pytest.approx(model.score(X, y), abs=1e-6)
    assert sum(parts["held_out"]["residuals"]["counts"]) == len(y)
    assert ended["bandwidth"] == pytest.approx(2 * train.trainer.distances.median(settings))
    assert model.ridge_ == 0.5
    assert model.plan_.n == 200
    # The held-out error of the best epoch is that of the model.
    scores = [fields["epoch"]["score"] for event, fields in train.sent if event == "epoch"]
    assert max(scores) == pytest.approx(parts["held_out"]["score"]["r2"], abs=1e-3)


def test_importances_are_the_rise_of_the_error_and_find_the_column_that_counts(tmp_path, rng):
    X = rng.normal(size=(400, 4))
    data = from_arrays(X, np.sin(2 * X[:, 2]))
    train = InProcess(data, tmp_path)
    train.trainer.fit(1, replace(first_settings(data.about), columns=(0, 2, 3), ridge=1e-3))
    found = train.parts()["importances"]
    assert found["columns"][0] == 2
    assert set(found["columns"]) == {0, 2, 3}
    assert found["rises"][0] > 0.5 > abs(found["rises"][-1])


def test_slices_of_images_begin_at_pixels_that_vary(tmp_path):
    data = from_arrays(*load_digits(return_X_y=True))
    assert data.about.side == 8
    train = InProcess(data, tmp_path)
    train.trainer.fit(1, replace(first_settings(data.about), rows=300))
    found = train.parts()["importances"]
    ranked = found["columns"]
    assert len(ranked) == len(found["rises"]) == found["side"] ** 2
    spread = data.X.std(0)  # the first pixel is black in all images
    for pixel in (*ranked[:2], *data.about.first_columns[:2]):
        assert spread[pixel] > np.median(spread)
    best = int(np.argmax(found["rises"]))
    top, left = (2 * place for place in divmod(best, found["side"]))
    assert divmod(ranked[0], 8) in [(top + i, left + j) for i in (0, 1) for j in (0, 1)]


def test_slices_of_a_table_begin_at_columns_that_vary(rng):
    X = np.column_stack([np.ones(50), rng.normal(size=(50, 2))])
    assert from_arrays(X, X[:, 1]).about.first_columns == (1, 2, 0)


def test_the_spectrum_after_levelling_is_flat_up_to_q(diabetes, tmp_path):
    train = InProcess(diabetes, tmp_path)
    train.trainer.fit(1, replace(first_settings(diabetes.about), rows=300))
    plan = next(fields["plan"] for event, fields in train.sent if event == "plan")
    q = plan["q"]
    before, after = (dict(zip(plan["index"], plan[name], strict=True)) for name in ("before", "after"))
    assert 1 < q <= max(plan["index"])
    assert all(after[i] == before[q] for i in after if i <= q)
    assert all(after[i] == before[i] for i in after if i >= q)
    assert plan["m_star"] > plan["m_star_plain"]


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_a_slice_is_the_prediction_with_the_other_columns_fixed(task, diabetes, wine, tmp_path):
    data = diabetes if task == "regression" else wine
    train = InProcess(data, tmp_path)
    settings = replace(first_settings(data.about), rows=100)
    train.trainer.fit(1, settings)
    model = mercer.load(tmp_path / "run-1.mercer")
    slicer = Slicer(data, settings, model)
    line = slicer.line(2, 1 if task == "classification" else None, False, 5)
    row = np.asarray(data.X[data.held_out[5]], dtype=float)
    X = np.tile(row, (len(line["x"]), 1))
    X[:, 2] = line["x"]
    expected = model.predict(X) if task == "regression" else model.predict_proba(X)[:, 1]
    np.testing.assert_allclose(line["y"], expected, rtol=1e-4, atol=1e-6)
    assert len(line["dots"][0]) == len(line["dots"][1]) > 20
    surface = slicer.map(2, 3, line["output"], 5)
    X = np.tile(row, (len(surface["x"]), 1))
    X[:, 2], X[:, 3] = surface["x"], surface["y"][7]
    expected = model.predict(X) if task == "regression" else model.predict_proba(X)[:, 1]
    np.testing.assert_allclose(surface["z"][7], expected, rtol=1e-4, atol=1e-6)


def test_a_slice_shows_the_class_of_its_row_unless_one_is_chosen(wine, tmp_path):
    train = InProcess(wine, tmp_path)
    train.trainer.fit(1, first_settings(wine.about))
    model = train.trainer.models[1].model
    slicer = Slicer(wine, first_settings(wine.about), model)
    for row in range(6):
        found = slicer.line(0, None, False, row)
        predicted = model.predict(wine.X[wine.held_out[row : row + 1]])[0]
        assert model.classes_[found["output"]] == predicted
        assert slicer.map(0, 1, None, row)["output"] == found["output"]
    assert slicer.line(0, 2, False, 0)["output"] == 2


def test_a_slice_along_a_category_has_its_names(tmp_path):
    table = hostile_table(200)
    data = from_arrays(table.drop("y"), table["y"])
    train = InProcess(data, tmp_path)
    train.trainer.fit(1, first_settings(data.about))
    colour = next(i for i, field in enumerate(data.about.fields) if field.levels)
    train.trainer.models.clear()  # it is read from its file again
    train.inbox.questions.put({"ask": 7, "run": 1, "columns": [colour]})
    train.trainer.answer()
    answer = train.sent[-1][1]
    assert answer["ask"] == 7
    found = answer["data"]
    rise = np.diff(found["y"])[0] * (1 if found["labels"][1].startswith("blue") else -1)
    assert rise == pytest.approx(2, abs=0.5)


def test_a_superseded_run_ends_at_the_next_stage(diabetes, tmp_path):
    train = InProcess(diabetes, tmp_path)
    train.inbox.is_superseded = True
    with pytest.raises(Cancelled):
        train.trainer.fit(1, first_settings(diabetes.about))
    assert [event for event, _ in train.sent] == ["started"]
    assert not (tmp_path / "run-1.mercer").exists()


@pytest.mark.parametrize(
    ("place", "change"),
    [
        ("mercer.selection.trials.leave_one_out_once", {"auto": True}),
        ("mercer.selection.metric.loss_gradient", {"auto": True, "metric": True}),
        ("mercer.planning.levelling.nystrom_spectrum", {}),
        ("mercer.explorer.trainer.of_held_out", {}),
    ],
    ids=["between trials", "between steps of a metric", "within the plan", "after training"],
)
def test_a_superseded_run_ends_before_its_stage_does(diabetes, tmp_path, monkeypatch, place, change):
    train, after = InProcess(diabetes, tmp_path), []
    home, name = place.rsplit(".", 1)
    whole = getattr(import_module(home), name)

    def counted(*given, **options):
        after.extend([name] * train.inbox.is_superseded)
        train.inbox.is_superseded = True  # a slider was moved
        return whole(*given, **options)

    monkeypatch.setattr(place, counted)
    with torch_threads(1), pytest.raises(Cancelled):  # so that nothing else is on the way
        train.trainer.fit(1, replace(first_settings(diabetes.about), **change))
    assert not after
    assert "ended" not in [event for event, _ in train.sent]
    assert not (tmp_path / "run-1.mercer").exists()


def test_questions_are_answered_while_a_newer_fit_waits(diabetes, tmp_path):
    train = InProcess(diabetes, tmp_path)
    train.trainer.fit(1, first_settings(diabetes.about))
    train.sent.clear()
    train.inbox.questions.put({"ask": 7, "run": 1, "columns": [0]})
    train.inbox.is_superseded = True
    with watched(Watch(1, train.inbox, train.send, train.trainer.answer).check):
        train.trainer.answer()
    [(event, fields)] = train.sent
    assert (event, fields["ask"], "data" in fields) == ("answer", 7, True)


def test_a_stopped_run_keeps_the_weights_it_has(diabetes, tmp_path):
    train = InProcess(diabetes, tmp_path)
    train.inbox.is_stopped = True
    train.trainer.fit(1, replace(first_settings(diabetes.about), ridge=0.0))
    assert train.ended()["message"] == "stopped by the user"
    assert len([event for event, _ in train.sent if event == "epoch"]) == 1
    assert (tmp_path / "run-1.mercer").exists()


def test_sliders_set_to_what_the_search_found_train_the_same_model(tmp_path, rng):
    X = np.column_stack([rng.normal(size=(300, 2)), rng.integers(0, 5, size=300)])
    data = from_arrays(X, np.sin(X[:, 0]) + (X[:, 2] == 2))
    train = InProcess(data, tmp_path)
    train.trainer.fit(1, replace(first_settings(data.about), auto=True))
    found = next(fields["settings"] for event, fields in train.sent if event == "found")
    again = parse_settings({**found, "auto": False}, data.about)
    train.trainer.fit(2, again)
    searched, by_hand = (mercer.load(tmp_path / f"run-{i}.mercer") for i in (1, 2))
    assert by_hand.kernel_.name == searched.kernel_.name
    assert by_hand.bandwidth_ == pytest.approx(searched.bandwidth_)
    rows = data.X[data.held_out]
    spread = float(np.std(data.y))
    np.testing.assert_allclose(by_hand.predict(rows), searched.predict(rows), atol=0.02 * spread)


def test_the_copied_python_and_command_train_with_the_settings_of_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "it's a table.csv"
    # Polars leaves doubled quotes in the names of a CSV file as they are.
    plain = {name: name.replace('"', "'") for name in HOSTILE}
    hostile_table().rename(plain).write_csv(path)
    data = read_file(path, target="y")
    names = [field.name for field in data.about.fields]
    assert set(names) == {*plain.values(), "<b>colour</b>"}
    keep = tuple(i for i, name in enumerate(names) if name != HOSTILE[1])
    settings = replace(first_settings(data.about), columns=keep, ridge=0.25, kernel="gaussian")
    train = InProcess(data, tmp_path)
    train.trainer.fit(1, settings)
    ended = train.ended()
    space: dict[str, Any] = {}
    exec(ended["python"], space)
    model = space["model"]
    assert (model.kernel, model.ridge, model.bandwidth) == ("gaussian", 0.25, ended["bandwidth"])
    assert HOSTILE[1] not in model.feature_names_in_
    assert plain[HOSTILE[0]] in model.feature_names_in_
    words = shlex.split(ended["command"])
    assert words[:2] == ["mercer", "fit"]
    assert main([*words[1:], "--quiet"]) == 0
    saved = mercer.load(tmp_path / "it's a table.mercer")
    assert saved.ridge == 0.25
    assert saved.bandwidth_ == pytest.approx(ended["bandwidth"])
    assert HOSTILE[1] not in saved.feature_names_in_
    assert not (tmp_path / "x").exists()


def test_a_saved_model_predicts_a_table_with_the_names_of_the_file(tmp_path):
    path = tmp_path / "table.csv"
    hostile_table().write_csv(path)
    data = read_file(path, target="y")
    train = InProcess(data, tmp_path)
    train.trainer.fit(1, replace(first_settings(data.about), columns=(0, 4)))
    model = mercer.load(tmp_path / "run-1.mercer")
    assert len(model.predict(hostile_table().drop("y"))) == 120
    arguments = ["predict", str(tmp_path / "run-1.mercer"), str(path), "-o", str(tmp_path / "out.csv")]
    assert main([*arguments, "--quiet"]) == 0


def test_recipes_name_the_arrays_of_a_file_and_say_where_there_is_none(wine):
    about = replace(wine.about, source="d.npz", members=("X_train", "y_train"), command=())
    settings = replace(first_settings(about), columns=(0, 3))
    text = as_python(about, settings, {"ridge": 0.1})
    assert "data['X_train']" in text
    assert "X = X[:, [0, 3]]" in text
    assert as_command(wine.about, settings, {}) == ""


def test_runs_are_bounded_in_number_and_size_and_pins_are_kept():
    runs = Runs()
    first = runs.add({})
    first.status = "done"
    runs.pin(first.number, True)
    for _ in range(MOST_RUNS + 5):
        runs.add({}).status = "done"
        for old in runs.surplus():
            runs.remove(old.number)
    assert len(list(runs)) == MOST_RUNS
    assert runs.get(first.number) is first
    for run in runs:
        run.size = MOST_BYTES // 10
    for old in runs.surplus():
        runs.remove(old.number)
    assert sum(run.size for run in runs) <= MOST_BYTES
    assert runs.get(first.number) is first
    numbers = [run.number for run in runs]
    while len(list(runs)) < MOST_PINNED + 1:
        numbers.append(runs.add({}).number)
    for number in numbers[:MOST_PINNED]:
        runs.pin(number, True)
    with pytest.raises(ValueError, match="Unpin one first"):
        runs.pin(numbers[MOST_PINNED], True)


TOKEN, PORT = "the-token", 8123


def ask(method: str, path: str, headers: dict[str, str] | None = None, **options: Any) -> httpx.Response:
    """One request to an application whose session has not begun."""
    about = About("t", "regression", "y")
    app = create_app(Session(about, Path("nowhere")), TOKEN, PORT)

    async def once() -> httpx.Response:
        address = f"http://127.0.0.1:{PORT}"
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=address) as client:
            return await client.request(method, path, headers=headers, **options)

    return asyncio.run(once())


COOKIE = {"Cookie": f"mercer-explore-{PORT}={TOKEN}"}
OWN = {**COOKIE, "Origin": f"http://127.0.0.1:{PORT}"}


def test_the_token_in_the_address_becomes_a_cookie_that_other_sites_cannot_use():
    answer = ask("GET", f"/?token={TOKEN}")
    assert answer.status_code == 200
    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith(f"mercer-explore-{PORT}={TOKEN};")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert ask("GET", "/", COOKIE).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", {}, 401),
        ("GET", "/?token=wrong", {}, 401),
        ("GET", "/static/app.js", {}, 401),
        ("GET", "/", {"Cookie": f"mercer-explore-{PORT}=wrong"}, 401),
        ("GET", "/", {**COOKIE, "Host": "evil.example"}, 421),
        ("GET", f"/?token={TOKEN}", {"Host": f"evil.example:{PORT}"}, 421),
        ("GET", "/events", {**COOKIE, "Origin": "http://evil.example"}, 403),
        ("GET", "/events", {**COOKIE, "Sec-Fetch-Site": "cross-site"}, 403),
        ("POST", "/runs", COOKIE, 403),
        ("POST", "/runs", {**COOKIE, "Origin": "null"}, 403),
        ("POST", "/runs", {**OWN, "Content-Length": str(10**9)}, 413),
        ("POST", "/runs", OWN, 400),
        ("GET", "/runs/7", COOKIE, 400),
        ("GET", "/static/../server.py", COOKIE, 404),
        ("GET", "/static/%2e%2e/server.py", COOKIE, 404),
        ("PUT", "/runs", OWN, 405),
    ],
)
def test_requests_without_the_token_or_from_elsewhere_are_refused(method, path, headers, status):
    assert ask(method, path, headers).status_code == status


def test_every_answer_forbids_scripts_and_frames_of_others():
    for path in ("/", "/static/app.js", "/runs/9"):
        headers = ask("GET", path, COOKIE).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in headers


def test_the_page_loads_nothing_from_the_network():
    static = Path(mercer.__file__).parent / "explorer" / "static"
    own = [*static.glob("*.js"), *static.glob("*.css"), *static.glob("*.html")]
    assert len(own) >= 8
    for path in own:
        text = path.read_text("utf-8")
        assert not [word for word in ("https://", "innerHTML", "eval(") if word in text], path.name
    assert "MIT License" in (static / "vendor" / "LICENSE-uPlot.txt").read_text("utf-8")


@pytest.mark.parametrize("body", [b"[]", b"{", b"\xff", b'{"columns": "all"}', b"[" * 100_000])
def test_a_body_that_is_no_request_is_refused(body):
    answer = ask("POST", "/runs", OWN, content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_targets_of_several_columns_are_refused():
    with pytest.raises(ValueError, match="one target a row"):
        mercer.explore(np.zeros((9, 2)), np.zeros((9, 2)), block=False, open_browser=False)


class Page:
    """A page as the server sees it: a client that reads events."""

    def __init__(self, explorer: Explorer) -> None:
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{explorer.port}", timeout=60, trust_env=False
        )
        self.client.get(explorer.url)
        self.client.headers["Origin"] = f"http://127.0.0.1:{explorer.port}"

    def start(self, settings: dict[str, Any]) -> int:
        return int(self.client.post("/runs", json=settings).raise_for_status().json()["run"])

    def events(self, until: Any, seconds: float = 120.0) -> list[tuple[str, Any]]:
        """Events from a new connection on, up to the first that `until` is true of."""
        found, end, event = [], time.monotonic() + seconds, ""
        with self.client.stream("GET", "/events") as answer:
            for line in answer.iter_lines():
                assert time.monotonic() < end, found[-3:]
                if line.startswith("event: "):
                    event = line[7:]
                elif line.startswith("data: "):
                    found.append((event, json.loads(line[6:])))
                    if until(*found[-1]):
                        return found
        raise AssertionError("the events ended")

    def done(self, run: int) -> dict[str, Any]:
        """Wait for the end of a run."""

        def ended(event: str, data: Any) -> bool:
            runs = data["runs"] if event == "state" else [data] if event == "run" else []
            return any(r["run"] == run and r["status"] in ("done", "failed") for r in runs)

        self.events(ended)
        shown: dict[str, Any] = self.client.get(f"/runs/{run}").json()
        return shown


@pytest.fixture(scope="module")
def explorer() -> Iterator[Explorer]:
    X, y = load_diabetes(return_X_y=True)
    with mercer.explore(X, y, title="diabetes", block=False, open_browser=False) as explorer:
        yield explorer


@pytest.fixture(scope="module")
def page(explorer: Explorer) -> Iterator[Page]:
    page = Page(explorer)
    page.done(1)
    yield page
    page.client.close()


def test_the_first_run_begins_by_itself_and_can_be_saved(page, diabetes, tmp_path):
    run = page.done(1)
    assert run["status"] == "done"
    answer = page.client.get("/runs/1/model")
    assert answer.headers["Content-Disposition"] == 'attachment; filename="diabetes-run-1.mercer"'
    (tmp_path / "m.mercer").write_bytes(answer.content)
    model = mercer.load(tmp_path / "m.mercer")
    assert model.bandwidth_ == run["result"]["bandwidth"]
    X, y = diabetes.X[diabetes.held_out], diabetes.y[diabetes.held_out]  # the same rows each time
    assert run["details"]["held_out"]["score"]["r2"] == pytest.approx(model.score(X, y), abs=1e-6)


def test_a_new_run_supersedes_the_one_that_trains(page):
    settings = page.client.get("/runs/1").json()["settings"]
    slow = {**settings, "ridge": 0.0, "ratio": 30.0, "epochs": 200, "kernel": "gaussian"}
    first = page.start(slow)
    second = page.start({**settings, "ridge": 0.1})
    assert page.done(second)["status"] == "done"
    assert page.client.get(f"/runs/{first}").status_code == 400
    assert page.client.get(f"/runs/{first}/model").status_code == 400


def test_two_pages_see_the_same_runs_and_a_late_one_gets_the_whole_state(page, explorer):
    other = Page(explorer)
    run = page.start({**page.client.get("/runs/1").json()["settings"], "ridge": 0.3})
    assert other.done(run)["settings"]["ridge"] == 0.3
    late = Page(explorer)
    state = late.events(lambda event, data: event == "state")[0][1]
    late.client.close()
    assert run in [one["run"] for one in state["runs"]]
    assert state["data"]["title"] == "diabetes"
    assert state["current"] == run
    other.client.patch(f"/runs/{run}", json={"pinned": True}).raise_for_status()
    assert page.client.get(f"/runs/{run}").json()["pinned"] is True
    other.client.patch(f"/runs/{run}", json={"pinned": False}).raise_for_status()
    other.client.delete(f"/runs/{run}").raise_for_status()
    other.client.close()
    assert page.client.get(f"/runs/{run}").status_code == 400


def test_a_run_that_fails_says_why_and_the_next_one_works(page):
    settings = page.client.get("/runs/1").json()["settings"]
    run = page.start({**settings, "kernel": "neural_tangent", "scale": "rank", "ridge": 1.0})
    assert page.done(run)["status"] == "done"  # standardised, since ranks need a kernel of distances
    answer = page.client.post("/runs", json={**settings, "columns": []})
    assert answer.status_code == 400
    assert "Choose at least one column" in answer.json()["error"]


def test_slices_of_unknown_columns_and_classes_are_refused(page):
    for body in ({"columns": [99]}, {"columns": []}, {"columns": [0, 0]}, {"columns": [0], "output": 3}):
        answer = page.client.post("/runs/1/slice", json=body)
        assert answer.status_code == 400
        assert "must be" in answer.json()["error"]
    found = page.client.post("/runs/1/slice", json={"columns": [2], "averaged": True}).json()
    assert len(found["low"]) == len(found["x"])


def test_questions_that_are_asked_together_are_all_answered(page):
    def asked(column: int) -> httpx.Response:
        return page.client.post("/runs/1/slice", json={"columns": [column]}, timeout=20)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(asked, range(8)))
    assert [answer.json()["column"] for answer in answers] == list(range(8))


def test_a_killed_trainer_is_replaced_and_earlier_models_are_still_there(page, explorer):
    before = explorer.session.trainer.pid
    os.kill(before, signal.SIGKILL)
    events = page.events(lambda event, data: event == "trainer" and data["state"] == "ready")
    told = [data["note"] for event, data in events if event == "trainer"]
    told += [data["trainer"]["note"] for event, data in events if event == "state"]
    assert any("memory" in note for note in told)
    assert explorer.session.trainer.pid != before
    found = page.client.post("/runs/1/slice", json={"columns": [0]})
    assert found.status_code == 200
    assert len(found.json()["y"]) > 1
    run = page.start(page.client.get("/runs/1").json()["settings"])
    assert page.done(run)["status"] == "done"


def test_a_trainer_that_does_not_answer_is_replaced(page, explorer, monkeypatch):
    monkeypatch.setattr("mercer.explorer.session.GRACE", 0.2)
    before = explorer.session.trainer.pid
    os.kill(before, signal.SIGSTOP)
    run = page.start(page.client.get("/runs/1").json()["settings"])
    try:
        shown = page.done(run)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(before, signal.SIGCONT)
    assert shown["status"] == "done"
    assert explorer.session.trainer.pid != before


def test_closing_ends_the_trainer_and_deletes_the_files():
    explorer = mercer.explore(np.eye(20), np.arange(20.0), block=False, open_browser=False)
    folder = explorer.session.folder
    while explorer.session.trainer.pid is None:
        time.sleep(0.01)
    pid = explorer.session.trainer.pid
    explorer.close()
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_settings_are_plain_data():
    settings = Settings((0, 1), 50)
    assert parse_settings(to_data(settings), from_arrays(np.eye(90), np.arange(90.0)).about) == settings


def test_a_split_keeps_classes_that_can_be_learnt():
    y = np.array([*"aaaaabbbbbcd"])
    train, held_out = split(y, "classification")
    assert set(y[train]) == set("abcd")
    assert set(y[held_out]) <= set(y[train])
