"""Schemathesis finds no difference between the server and its own description."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from serving import client, plain_model, shop_model

pytest.importorskip("schemathesis", reason="needs schemathesis")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("described")
    paths = {}
    for name, model in (("shop", shop_model()), ("plain", plain_model())):
        model.save(folder / f"{name}.mercer")
        paths[name] = str(folder / f"{name}.mercer")
    with client(paths) as (one, _):
        yield one


@pytest.mark.parametrize(
    ("media", "examples"),
    [
        ("application/json", 20),
        ("text/csv", 5),
        pytest.param("application/json", 1_000, marks=pytest.mark.slow),
        pytest.param("text/csv", 1_000, marks=pytest.mark.slow),
    ],
)
def test_the_server_is_as_it_describes_itself(served, media, examples, tmp_path):
    description = served.get("/openapi.json").json()
    for operations in description["paths"].values():
        content = operations.get("post", {}).get("requestBody", {}).get("content", {})
        for other in set(content) - {media}:
            del content[other]
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(description))
    command = [sys.executable, "-m", "schemathesis.cli", "run", str(file), "--url", str(served.base_url)]
    command += ["--max-examples", str(examples), "--seed", "1", "--no-color"]
    if media == "text/csv":  # no schema says which text is CSV, so text that fits it may be refused
        command += ["--exclude-checks", "positive_data_acceptance"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Tested: 4" in done.stdout
