"""The server answers as the model does, and says in one sentence why it does not."""

from __future__ import annotations

import html
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polars as pl
import pytest
from serving import client, plain_model, shop_model, shop_table

import mercer
from mercer import KernelClassifier, KernelRegressor
from mercer.cli import main
from mercer.serve import batches
from mercer.serve.faults import Fault
from mercer.serve.limits import Limits
from mercer.serve.registry import Registry
from mercer.serve.served import read


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    models = {"shop": shop_model(), "plain": plain_model()}
    for name, model in models.items():
        model.save(folder / f"{name}.mercer")
    return {name: str(folder / f"{name}.mercer") for name in models}


@pytest.fixture(scope="module")
def served(files):
    with client(files) as (found, _):
        yield found


@pytest.fixture(scope="module")
def shop(files):
    return mercer.load(files["shop"])


def post(client, rows, model="shop", **options):
    return client.post(f"/models/{model}/predict", json=rows, params=options)


def sentence(response, status):
    """The error of a response, which must be one sentence."""
    assert response.status_code == status, response.text
    found = response.json()
    assert set(found) <= {"error", "row", "column"}
    assert "\n" not in found["error"]
    assert found["error"].endswith((".", "…"))
    return found["error"]


# Answers


def test_answers_in_json_are_those_of_the_model_to_the_last_bit(served, shop):
    table = shop_table(40, seed=5)
    options = {"probabilities": "true", "interval": "0.8", "far": "true"}
    found = post(served, table.to_dicts(), **options).json()
    rows = found["rows"]
    assert [row["prediction"] for row in rows] == shop.predict(table).tolist()
    probabilities = [[row["probabilities"][label] for label in shop.classes_] for row in rows]
    assert probabilities == shop.predict_proba(table).tolist()
    sets = shop.predict_set(table, coverage=0.8)
    assert [row["set"] for row in rows] == [shop.classes_[chosen].tolist() for chosen in sets]
    rate = max(0.01, shop.least_far_share)
    assert [row["far"] for row in rows] == shop.is_far(table, rate).tolist()


def test_answers_in_csv_are_what_the_command_line_writes(served, files, tmp_path):
    table = shop_table(40, seed=6)
    table.write_csv(tmp_path / "rows.csv")
    command = ["predict", files["shop"], str(tmp_path / "rows.csv"), "-o", str(tmp_path / "out.csv")]
    assert main([*command, "--proba", "--interval", "0.8", "--far", "--quiet"]) == 0
    response = served.post(
        "/models/shop/predict",
        params={"probabilities": "true", "interval": "0.8", "far": "true"},
        content=table.write_csv(),
        headers={"Content-Type": "text/csv"},
    )
    assert response.headers["content-type"].startswith("text/csv")
    assert response.text == (tmp_path / "out.csv").read_text()


def test_intervals_of_numbers_and_rows_without_names(served, files):
    model = mercer.load(files["plain"])
    X = np.random.default_rng(3).normal(size=(5, 3))
    as_arrays = post(served, X.tolist(), "plain").json()["rows"]
    as_objects = post(served, [{f"x{i}": v for i, v in enumerate(x)} for x in X.tolist()], "plain")
    assert as_objects.json()["rows"] == as_arrays
    assert [row["prediction"] for row in as_arrays] == model.predict(X).tolist()
    assert "no intervals" in sentence(post(served, X.tolist(), "plain", interval="0.9"), 422)


def test_a_regressor_has_intervals(tmp_path, rng):
    X = rng.normal(size=(120, 2))
    model = KernelRegressor("gaussian", bandwidth=1.0, metric=False, random_state=0)
    model.fit(pl.DataFrame({"a": X[:, 0], "b": X[:, 1]}), X[:, 0]).save(tmp_path / "m.mercer")
    with client({"m": str(tmp_path / "m.mercer")}) as (one, _):
        rows = one.post("/predict?interval=0.8", json=[{"b": 0.5, "a": 0.1, "other": []}]).json()["rows"]
        low, high = model.predict_interval(pl.DataFrame({"a": [0.1], "b": [0.5]}), 0.8)[0]
        assert (rows[0]["lower"], rows[0]["upper"]) == (low, high)
        assert one.post("/predict", json={"a": 0.1, "b": 0.5}).status_code == 200  # a single row


def test_a_model_without_importances_says_so(tmp_path, monkeypatch):
    # As with so many columns that they would take too long.
    monkeypatch.setattr("mercer.estimators.permutation.MOST_SHUFFLED_VALUES", 0)
    monkeypatch.setattr("mercer.estimators.permutation.SHARE_OF_AN_EPOCH", 0)
    plain_model().save(tmp_path / "m.mercer")
    with client({"m": str(tmp_path / "m.mercer")}) as (one, _):
        response = one.post("/predict?importances=true", json=[[0, 0, 0]])
        assert "no importances" in sentence(response, 422)
        assert one.get("/openapi.json").json()["paths"]["/predict"]["post"]["parameters"] == []


def test_importances_are_those_of_the_metric(tmp_path, rng):
    X = rng.normal(size=(600, 4))
    model = KernelRegressor(random_state=0).fit(X, np.sin(2 * X[:, 0]))
    model.save(tmp_path / "m.mercer")
    assert model.feature_importances_[0] > 0.5
    with client({"m": str(tmp_path / "m.mercer")}) as (one, _):
        found = one.post("/predict?importances=true", json=[[0, 0, 0, 0]]).json()["importances"]
    assert found == {f"x{i}": share for i, share in enumerate(model.feature_importances_)}


def test_several_outputs_and_labels_are_arrays(tmp_path, rng):
    X = rng.normal(size=(60, 2))
    settings = {"bandwidth": 1.0, "ridge": 0.1, "metric": False, "random_state": 0}
    two = KernelRegressor("gaussian", **settings).fit(X, np.stack([X[:, 0], X[:, 1]], 1))
    labels = KernelClassifier("gaussian", **settings).fit(X, (X > 0).astype(int))
    two.save(tmp_path / "two.mercer")
    labels.save(tmp_path / "labels.mercer")
    paths = {name: str(tmp_path / f"{name}.mercer") for name in ("two", "labels")}
    with client(paths) as (several, _):
        rows = post(several, X[:3].tolist(), "two").json()["rows"]
        assert [row["prediction"] for row in rows] == two.predict(X[:3]).tolist()
        rows = post(several, X[:3].tolist(), "labels", probabilities="true").json()["rows"]
        assert [row["prediction"] for row in rows] == labels.predict(X[:3]).tolist()
        headers = {"Accept": "text/csv"}
        response = several.post("/models/two/predict", json=X[:3].tolist(), headers=headers)
        assert "one value" in sentence(response, 406)
        assert "several models" in sentence(several.post("/predict", json=[[1, 2]]), 404)


def test_dates_times_and_durations_are_read(tmp_path, rng):
    n = 80
    days = pl.datetime_range(
        pl.datetime(2024, 1, 1), pl.datetime(2024, 3, 20), interval="1d", eager=True
    )[:n]
    table = pl.DataFrame(
        {
            "day": days,
            "time": pl.Series([i * 10**12 for i in range(n)]).cast(pl.Time),
            "took": pl.Series(rng.integers(1, 10**9, n)).cast(pl.Duration("us")),
        }
    )
    settings = {"bandwidth": 1.0, "ridge": 0.1, "metric": False, "random_state": 0}
    model = KernelRegressor("gaussian", **settings).fit(table, np.arange(n) / n)
    model.save(tmp_path / "m.mercer")
    row = table[[7]]
    value = {
        "day": row["day"][0].isoformat(),
        "time": row["time"][0].isoformat(),
        "took": row["took"][0].total_seconds(),
    }
    with client({"m": str(tmp_path / "m.mercer")}) as (one, _):
        found = one.post("/predict", json=[value]).json()["rows"][0]["prediction"]
        assert found == model.predict(row)[0]
        text = f"day,time,took\n{value['day']},{value['time']},{value['took']}\n"
        headers = {"Content-Type": "text/csv", "Accept": "application/json"}
        assert (
            one.post("/predict", content=text, headers=headers).json()["rows"][0]["prediction"] == found
        )
        assert "times of day" in sentence(one.post("/predict", json=[value | {"time": "noon"}]), 422)
        assert "dates" in sentence(one.post("/predict", json=[value | {"day": "soon"}]), 422)


# Errors


GOOD = {"age": 40, "city": "Oslo", "member": True}


@pytest.mark.parametrize(
    ("rows", "row", "column", "message"),
    [
        (
            [GOOD, GOOD | {"age": "forty"}],
            2,
            "age",
            "hold numbers, or null, but row 2 holds 'forty'",
        ),
        ([GOOD | {"age": True}], 1, "age", "must hold numbers"),
        ([GOOD | {"age": 1e39}], 1, "age", "numbers of at most 3.4e\\+38"),
        ([GOOD | {"member": 1}], 1, "member", "must hold booleans"),
        ([GOOD | {"city": ["Oslo"]}], 1, "city", "must hold text"),
        ([GOOD, {"agee": 1, "city": "Oslo", "member": True}], 2, "age", "no 'age'. Did you mean 'agee'"),
        ([GOOD, [1, 2]], 2, None, "row 2 is an array"),
        ([[1, "Oslo"]], 1, None, "has 2 values, but the model has 3 columns"),
        ([3], 1, None, "row 1 is a number"),
        ([], None, None, "array of rows, one or more"),
        ("text", None, None, "array of rows"),
    ],
)
def test_a_bad_value_is_named_with_its_row_and_column(served, rows, row, column, message):
    response = post(served, rows)
    assert sentence(response, 422)
    assert response.json().get("row") == row
    assert response.json().get("column") == column
    assert re.search(message, response.json()["error"]), response.json()["error"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[NaN]", "not JSON"),
        (b'{"a": "\xff"}', "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_malformed_json_is_refused(served, body, message):
    headers = {"Content-Type": "application/json"}
    response = served.post("/models/shop/predict", content=body, headers=headers)
    assert message in sentence(response, 400)


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        (b"", 400, "name the columns"),
        (b"\rage,city,member\n1,Oslo,true\n", 400, "name the columns"),
        (b"a" * 140_000 + b",city,member\n1,Oslo,true\n", 400, "name the columns"),
        (b"age,city,member\n", 422, "no rows"),
        (b"age,city,member\n1,Oslo\n", 400, "line 2 has 2 fields"),
        (b"age,city,member\n1,Oslo,true,4\n", 400, "line 2 has 4 fields"),
        (b'age,city,member\n1,"Oslo,true\n', 400, "quote in line 2"),
        (b"age,city,member\n1,\xff,true\n", 400, "UTF-8"),
        (b"age,city\n1,Oslo\n", 422, "no column 'member'"),
        (b"age,city,member\n1,Oslo,true\nx,Oslo,true\n", 422, "row 2 holds 'x'"),
        (b"age,city,member\n1,Oslo,maybe\n", 422, "row 1 holds 'maybe'"),
    ],
)
def test_malformed_csv_is_refused(served, text, status, message):
    response = served.post("/models/shop/predict", content=text, headers={"Content-Type": "text/csv"})
    assert message in sentence(response, status)


def test_csv_may_have_blanks_other_separators_and_missing_values(served, shop):
    text = "member; city ;age\ntrue;Oslo;NA\nfalse;Lima; 38.5\n"
    headers = {"Content-Type": "text/csv; charset=utf-8", "Accept": "application/json"}
    rows = served.post("/models/shop/predict", content=text, headers=headers).json()["rows"]
    table = pl.DataFrame({"age": [None, 38.5], "city": ["Oslo", "Lima"], "member": [True, False]})
    assert [row["prediction"] for row in rows] == shop.predict(table).tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"proba": "true"}, "no option 'proba'"),
        ({"probabilities": "yes"}, "true or false"),
        ({"interval": "1.5"}, "between 0 and 1"),
        ({"interval": "nan"}, "between 0 and 1"),
        ({"interval": "0.99999"}, "coverage of at most"),
    ],
)
def test_options_that_a_model_does_not_have_are_refused(served, options, message):
    assert message in sentence(post(served, [GOOD], **options), 422)


def test_other_addresses_methods_and_formats_are_refused(served):
    assert "Did you mean 'shop'" in sentence(post(served, [GOOD], "shopp"), 404)
    assert "There is no /no" in sentence(served.get("/no"), 404)
    response = served.get("/models/shop/predict")
    assert "takes POST" in sentence(response, 405)
    assert response.headers["allow"] == "POST"
    body = {"content": b"x", "headers": {"Content-Type": "text/html"}}
    assert "Content-Type" in sentence(served.post("/models/shop/predict", **body), 415)
    body = {"content": b"x", "headers": {"Content-Encoding": "gzip"}}
    assert "compressed" in sentence(served.post("/models/shop/predict", **body), 415)
    body = {"json": [GOOD], "headers": {"Accept": "image/png"}}
    assert "Answers are" in sentence(served.post("/models/shop/predict", **body), 406)


def test_hostile_names_are_escaped_on_the_page(tmp_path, rng):
    name = "</script><img src=x onerror=alert(1)>"
    table = pl.DataFrame({name: rng.normal(size=50), "t": rng.choice(["<b>", "&"], 50)})
    model = KernelRegressor("gaussian", bandwidth=1.0, ridge=0.1, metric=False, random_state=0)
    model.fit(table, table[name].to_numpy()).save(tmp_path / "m.mercer")
    with client({"m": str(tmp_path / "m.mercer")}) as (one, _):
        response = one.get("/")
    assert "<img" not in response.text
    assert response.text.count("</script>") == 1
    assert "<b>" not in response.text
    policy = response.headers["content-security-policy"]
    assert "script-src 'sha256-" in policy
    assert "http" not in response.text.partition("<body>")[0]  # nothing is loaded from elsewhere


# Limits


def test_the_page_has_a_command_for_its_own_address_and_says_what_options_do(served):
    text = html.unescape(served.get("/").text)
    address = str(served.base_url).rstrip("/")
    assert f"curl '{address}/models/shop/predict?probabilities=true'" in text
    for option in ("probabilities=true", "interval=0.9", "far=true", "importances=true"):
        assert f"<code>{option}</code>" in text
    assert "Add the importance of each column" in text
    hostile = {"Host": "x'$(touch y)<b>"}
    answer = served.get("/", headers=hostile)
    assert answer.status_code == 400 or "<b>" not in answer.text


def test_too_many_rows_bytes_and_requests_are_turned_away(files):
    with client(files, Limits(body=2_000, rows=3)) as (small, _):
        assert "at most 3 rows" in sentence(post(small, [GOOD] * 4), 413)
        assert "at most 2,000 bytes" in sentence(post(small, [GOOD] * 100), 413)

        def pieces():
            for _ in range(50):
                yield b"[" * 100

        response = small.post("/models/shop/predict", content=pieces())  # without Content-Length
        assert "at most 2,000 bytes" in sentence(response, 413)
        assert post(small, [GOOD] * 3).status_code == 200
    with client(files, Limits(queue=0)) as (full, _):
        response = post(full, [GOOD])
        assert "Try again" in sentence(response, 429)
        assert response.headers["retry-after"] == "1"


def test_a_full_queue_turns_requests_away_until_one_is_answered(files, shop, monkeypatch):
    free, begun = threading.Event(), threading.Event()
    predict = batches.all_answers

    def held(*arguments, **options):
        begun.set()
        free.wait(30)
        return predict(*arguments, **options)

    monkeypatch.setattr(batches, "all_answers", held)
    table = shop_table(2)
    with client(files, Limits(queue=2)) as (one, app), ThreadPoolExecutor(2) as pool:
        first = pool.submit(post, one, table.to_dicts())
        assert begun.wait(30)
        second = pool.submit(post, one, table.to_dicts())
        while app.state.service.admission.requests < 2:
            time.sleep(0.01)
        assert "2 requests are waiting" in sentence(post(one, table.to_dicts()), 429)
        assert one.get("/health").status_code == 200  # which waits for nobody
        free.set()
        for task in (first, second):
            assert [row["prediction"] for row in task.result().json()["rows"]] == shop.predict(
                table
            ).tolist()
        assert post(one, table.to_dicts()).status_code == 200
        assert app.state.service.admission.bytes == 0


def test_models_of_one_server_are_asked_and_replaced_apart(tmp_path):
    paths = {name: tmp_path / f"{name}.mercer" for name in ("a", "b")}
    for factor, path in enumerate(paths.values(), 1):
        plain_model(float(factor)).save(path)
    X = np.random.default_rng(0).normal(size=(5, 3))
    with (
        client({name: str(path) for name, path in paths.items()}) as (one, app),
        ThreadPoolExecutor(8) as pool,
    ):

        def check():
            models = {name: mercer.load(path) for name, path in paths.items()}
            wanted = ["a", "b"] * 8
            answers = list(pool.map(lambda name: post(one, X.tolist(), name).json(), wanted))
            for name, answer in zip(wanted, answers, strict=True):
                found = [row["prediction"] for row in answer["rows"]]
                np.testing.assert_allclose(found, models[name].predict(X), atol=1e-5)
            return [answer["version"] for answer in answers[:2]]

        before = check()
        plain_model(3.0).save(paths["b"])
        registry = app.state.service.registry
        while registry["b"].version == before[1]:  # the server looks at its files by itself
            time.sleep(0.02)
        after = check()
    assert (after[0] == before[0], after[1] == before[1]) == (True, False)


def test_an_answer_that_takes_too_long_is_given_up(files, monkeypatch):
    free, ended = threading.Event(), []

    def stuck(*arguments, **options):
        free.wait(30)
        ended.append(1)
        raise ValueError("stuck")

    monkeypatch.setattr(batches, "all_answers", stuck)
    with client(files, Limits(seconds=0.2)) as (slow, _):
        assert "0.2 seconds" in sentence(post(slow, [GOOD]), 504)
        assert "0.2 seconds" in sentence(post(slow, [GOOD]), 504)  # waits behind the first
        free.set()
    assert ended == [1]  # the second was never begun


def test_an_unexpected_error_is_told_to_the_operator_and_not_to_the_client(files, monkeypatch):
    def broken(*arguments, **options):
        raise RuntimeError("secret")

    monkeypatch.setattr(batches, "all_answers", broken)
    said = []
    with client(files, say=said.append) as (one, _):
        assert "secret" not in sentence(post(one, [GOOD]), 500)
    assert said == ["a prediction failed: RuntimeError: secret"]


# Batches


def test_requests_that_wait_together_are_predicted_in_one_call(files, shop, monkeypatch):
    calls, free, begun = [], threading.Event(), threading.Event()
    predict = batches.all_answers

    def counted(model, X, **options):
        calls.append(len(X))
        begun.set()
        free.wait(30)
        return predict(model, X, **options)

    monkeypatch.setattr(batches, "all_answers", counted)
    tables = [shop_table(3 + i, seed=i) for i in range(6)]
    with client(files) as (one, app), ThreadPoolExecutor(6) as pool:
        first = pool.submit(post, one, tables[0].to_dicts())
        assert begun.wait(30)
        worker = app.state.service.batches

        def wait_for(waiting: int) -> None:
            while len(worker._waiting) < waiting:
                time.sleep(0.01)

        rest = [pool.submit(post, one, table.to_dicts()) for table in tables[1:5]]
        wait_for(4)
        other = pool.submit(post, one, tables[5].to_dicts(), probabilities="true")
        wait_for(5)
        free.set()
        found = [task.result().json()["rows"] for task in (first, *rest, other)]
        text = one.get("/metrics").text
    assert calls == [3, 4 + 5 + 6 + 7, 8]
    for table, rows in zip(tables, found, strict=True):
        assert [row["prediction"] for row in rows] == shop.predict(table).tolist()
    assert 'mercer_batch_requests_bucket{le="4.0"} 3.0' in text


def test_one_bad_request_does_not_spoil_the_others_in_its_batch(files):
    served = read("plain", files["plain"], None)
    wishes = batches.Wishes()
    good = batches.Job(served, wishes, np.ones((2, 3)))
    bad = batches.Job(served, wishes, np.full((1, 3), np.inf))
    worker = batches.Batches(lambda requests, rows: None)
    for job in (good, bad):
        worker._waiting.append(job)
    worker.submit(batches.Job(served, wishes, np.zeros((1, 3))))
    worker.close()
    np.testing.assert_array_equal(good.answers.result().predicted, served.model.predict(np.ones((2, 3))))
    with pytest.raises(ValueError, match="infinity"):
        bad.answers.result()


def test_more_rows_than_fit_into_one_call_have_the_same_answers(files, monkeypatch):
    served = read("shop", files["shop"], None)
    X, _ = served.columns.features(shop_table(50, seed=9))
    wishes = batches.Wishes(probabilities=True, interval=0.8, far=True)
    whole = batches.predicted(batches.Job(served, wishes, X), X)
    monkeypatch.setattr(batches, "ROWS_AT_ONCE", 16)
    parts = batches.predicted(batches.Job(served, wishes, X), X)
    for name in ("predicted", "sets"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
    for name in ("probabilities", "far_shares"):  # the promise is equality up to rounding
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), atol=1e-5)


# Files that are replaced


def test_a_replaced_file_is_read_again_and_a_damaged_one_is_not_used(tmp_path):
    path = tmp_path / "m.mercer"
    plain_model().save(path)
    registry = Registry({"m": str(path)}, None)
    entry = registry.entries["m"]
    first = registry["m"]
    assert not registry.renew(entry)
    plain_model(2.0).save(path)
    assert registry.renew(entry)
    second = registry["m"]
    assert second.version != first.version
    whole = path.read_bytes()
    path.write_bytes(whole[:1000])  # in place
    assert registry.renew(entry)
    assert registry["m"] is second
    assert str(path) in entry.problem
    path.unlink()
    assert registry.renew(entry)
    assert entry.problem == f"{str(path)!r} is gone."
    x = np.ones((1, 3))
    assert second.model.predict(x)[0] == pytest.approx(2 * first.model.predict(x)[0], rel=1e-3)
    path.write_bytes(whole)
    assert registry.renew(entry)
    assert (registry["m"].version, entry.problem) == (second.version, None)


def test_health_tells_of_a_file_that_cannot_be_used(tmp_path):
    path = tmp_path / "m.mercer"
    plain_model().save(path)
    with client({"m": str(path)}) as (one, app):
        registry = app.state.service.registry
        assert one.get("/health").json()["status"] == "ok"
        path.write_bytes(b"no model")
        registry.renew(registry.entries["m"])
        found = one.get("/health").json()
        assert found["status"] == "stale"
        assert "must be a whole Mercer model" in found["models"]["m"]["problem"]
        assert one.post("/predict", json=[[1, 2, 3]]).status_code == 200


# The description and the metrics


def test_the_description_has_each_models_columns_and_options(served):
    found = served.get("/openapi.json").json()
    shop, plain = (found["paths"][f"/models/{name}/predict"]["post"] for name in ("shop", "plain"))
    assert [p["name"] for p in shop["parameters"]] == ["probabilities", "interval", "far", "importances"]
    assert [p["name"] for p in plain["parameters"]] == ["importances"]
    row = shop["requestBody"]["content"]["application/json"]["schema"]["anyOf"][2]
    assert row["required"] == ["age", "city", "member"]
    for name, operation in (("shop", shop), ("plain", plain)):
        content = operation["requestBody"]["content"]
        assert post(served, content["application/json"]["example"], name).status_code == 200
        body = {"content": content["text/csv"]["example"], "headers": {"Content-Type": "text/csv"}}
        assert served.post(f"/models/{name}/predict", **body).status_code == 200


def test_metrics_are_readable_by_prometheus(served):
    from prometheus_client.parser import text_string_to_metric_families

    post(served, [GOOD])
    response = served.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, sample.labels.get("model")): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }
    assert samples["mercer_rows_total", "shop"] >= 1
    assert samples["mercer_model_loaded_timestamp_seconds", "plain"] > 0


# The command


def test_names_of_models_on_the_command_line(capsys, files, tmp_path):
    path = files["plain"]
    assert main(["serve", path, path]) == 2
    assert "Two models have the name 'plain'" in capsys.readouterr().err
    assert main(["serve", f"a/b={path}"]) == 2
    assert "letters, digits" in capsys.readouterr().err
    assert main(["serve", str(tmp_path / "none.mercer")]) == 1
    assert "There is no model file" in capsys.readouterr().err
    assert main(["serve", path, "--host", "no.such.host.invalid"]) == 1
    assert "Cannot listen at no.such.host.invalid" in capsys.readouterr().err


def test_faults_of_any_length_are_one_short_sentence():
    body = json.loads(Fault(422, "a\nb " * 10_000).response().body)
    assert len(body["error"]) == 1_000
    assert "\n" not in body["error"]
