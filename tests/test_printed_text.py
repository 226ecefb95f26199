"""Text from data, files and models is printed visibly, and CSV output is safe in a spreadsheet."""

from __future__ import annotations

import html
import json
import sys
import types

import numpy as np
import polars as pl
import pytest

from benchmarks.torture import command_line as torture
from mercer.cli import main, outputs, sentence
from mercer.cli.messages import Progress, say
from mercer.report.markup import join
from mercer.visible import visible, visible_json

# Clears the screen, sets the title of the window, reverses the direction of writing.
ESCAPES = "\x1b[2J\x1b]0;title\x07\x9b31m\u202e"
SHOWN = r"\x1b[2J\x1b]0;title\x07\x9b31m\u202e"
FORMULAS = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "＝1+1"]


@pytest.fixture
def run(capfd):
    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A table with escapes in its name, its columns and its labels, and a model trained on it."""
    folder = tmp_path_factory.mktemp("hostile")
    rng = np.random.default_rng(0)
    x = rng.normal(size=60)
    labels = np.where(x > 0, f"a{ESCAPES}", f"b{ESCAPES}")
    data, model = folder / f"data{ESCAPES}.csv", folder / f"model{ESCAPES}"
    pl.DataFrame({f"x{ESCAPES}": x, "z": rng.normal(size=60), f"y{ESCAPES}": labels}).write_csv(data)
    return data, model


@pytest.fixture
def hostile_model(hostile, run):
    data, model = hostile
    if not model.exists():
        assert run(*fit(data, model), "-q")[0] == 0
    return model


def fit(data, model):
    fixed = ["--kernel", "gaussian", "--bandwidth", "1", "--ridge", "0.1"]
    return ["fit", data, "-t", f"y{ESCAPES}", "-o", model, *fixed]


def test_no_screen_shows_raw_escapes(hostile, hostile_model, run, tmp_path):
    data, model = hostile[0], hostile_model
    out = tmp_path / f"out{ESCAPES}.csv"
    for arguments, code in (
        ([*fit(data, tmp_path / f"m{ESCAPES}")], 0),
        (["evaluate", model, data], 0),
        (["info", model], 0),
        (["info", model, "--json"], 0),
        (["evaluate", model, data, "--json"], 0),
        (["predict", model, data, "-o", out], 0),
        (["predict", model, data, "-o", out, "--force", "--with", f"w{ESCAPES}"], 1),
        (["plan", data, "-t", f"y{ESCAPES}", "--kernel", "gaussian", "--bandwidth", "1"], 0),
        (["plan", f"none{ESCAPES}"], 1),
        (["info", data], 1),
        (["info", data, "--debug"], 1),
        (["fit", data, f"--none{ESCAPES}"], 2),
        ([f"none{ESCAPES}"], 2),
    ):
        got, said, err = run(*arguments)
        assert got == code, err
        assert torture.RAW.search(said + err) is None, arguments
    assert run("evaluate", model, data)[1].count(SHOWN[:12]) >= 3
    shown = json.loads(run("info", model, "--json")[1])
    assert shown["classes"] == [f"a{ESCAPES}", f"b{ESCAPES}"]  # programs get what the data has


def test_progress_shows_no_raw_escapes(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    Progress().on_stage(f"reading {ESCAPES[:5]}")
    assert r"reading \x1b[2J" in capsys.readouterr().err


def test_predictions_on_a_screen_are_visible_and_in_a_pipe_exact(monkeypatch):
    import io

    frame = pl.DataFrame({"prediction": [f"a{ESCAPES}", "b\nc"]})
    for is_screen, expected in (
        (True, f'prediction\na{SHOWN}\n"b\nc"\n'),
        (False, f'prediction\na{ESCAPES}\n"b\nc"\n'),
    ):
        stream = io.BytesIO()
        monkeypatch.setattr(
            sys, "stdout", types.SimpleNamespace(buffer=stream, isatty=lambda s=is_screen: s)
        )
        outputs.write_frames([frame], None)
        assert stream.getvalue().decode() == expected


def test_letters_of_all_scripts_and_joined_emoji_stay_as_they_are():
    for text in ("größer", "ваніль", "می\u200cخواهم", "👩\u200d🔬", "東京\u3000都", "a\u00a0b"):
        assert visible(text) == text
        assert json.loads(visible_json(json.dumps(text, ensure_ascii=False))) == text
    assert visible("\udcff\u2028\u2066") == r"\udcff\u2028\u2066"


@pytest.mark.parametrize(
    "text",
    [
        f"a{ESCAPES}b",
        "tab\t, line\n, mark\ufeff, soft\xad, half \ud800",
        "private \ue000, unassigned \u2065 \U000e0080",
        "می\u200cخواهم 👩\u200d🔬 a\u00a0b",
    ],
)
def test_a_terminal_and_a_report_show_the_same_characters(text, capsys):
    say(text)
    shown = capsys.readouterr().err.removesuffix("\n")
    assert shown.endswith(html.unescape(join(text)))
    assert torture.RAW.search(shown) is None


def test_an_error_is_one_line_of_bounded_length():
    line = sentence(ValueError("word\n" * 10_000))
    assert "\n" not in line
    assert len(line) <= 1000


def test_a_panic_outside_reading_is_an_error_and_no_traceback(run, monkeypatch):
    def panic(*arguments, **options):
        raise pl.exceptions.PanicException("index out of bounds")

    monkeypatch.setattr("mercer.cli.predicting.load_model", panic)
    code, _, err = run("info", "m")
    assert code == 1
    assert "index out of bounds" in err
    assert "Traceback" not in err


@pytest.fixture(scope="module")
def formulas(tmp_path_factory):
    """A table whose labels, and a column of text, would be formulas in a spreadsheet."""
    folder = tmp_path_factory.mktemp("formulas")
    rng = np.random.default_rng(0)
    x = rng.normal(size=70)
    text = [FORMULAS[i % len(FORMULAS)] for i in range(70)]
    frame = pl.DataFrame(
        {
            "x": x,
            "=note": text,
            "n": -np.arange(70),
            "id": ["-5"] * 70,
            "y": np.where(x > 0, "=1+1", "plain"),
        }
    )
    frame.write_parquet(folder / "f.parquet")
    return folder / "f.parquet", folder / "model"


def predicted(run, formulas, out, *more):
    data, model = formulas
    if not model.exists():
        options = ["--drop", "=note", "--drop", "id", "--kernel", "gaussian", "--bandwidth", "1", "-q"]
        code, _, err = run("fit", data, "-o", model, *options)
        assert code == 0, err
    copied = [word for name in ("=note", "n", "id") for word in ("--with", name)]
    code, _, err = run("predict", model, data, "-o", out, *copied, *more, "-q")
    assert code == 0, err
    read = pl.read_parquet if out.suffix == ".parquet" else pl.read_csv
    return read(out, **({} if out.suffix == ".parquet" else {"infer_schema": False}))


def test_csv_output_guards_text_that_a_spreadsheet_would_run(run, formulas, tmp_path):
    read = predicted(run, formulas, tmp_path / "out.csv")
    assert read.columns == ["'=note", "n", "id", "prediction"]
    assert read["'=note"].to_list()[: len(FORMULAS)] == [f"'{text}" for text in FORMULAS]
    assert set(read["prediction"]) == {"'=1+1", "plain"}
    assert read["n"].to_list() == [str(-i) for i in range(70)]  # numbers are never changed
    assert set(read["id"]) == {"-5"}


def test_the_guard_can_be_turned_off_and_parquet_never_has_it(run, formulas, tmp_path):
    for name, more in (("out.csv", ["--allow-formulas"]), ("out.parquet", [])):
        read = predicted(run, formulas, tmp_path / name, *more)
        assert read["=note"].to_list()[: len(FORMULAS)] == FORMULAS
        assert set(read["prediction"]) == {"=1+1", "plain"}


def test_lists_are_refused_in_csv_and_written_to_parquet(tmp_path):
    frame = pl.DataFrame({"prediction": [1, 2], "list": [[1], [2]]})
    with pytest.raises(ValueError, match=r"'list' cannot be written to CSV: it holds List\(Int64\)"):
        outputs.write_frames([frame], tmp_path / "out.csv")
    assert not list(tmp_path.iterdir())
    outputs.write_frames([frame], tmp_path / "out.parquet")
    assert pl.read_parquet(tmp_path / "out.parquet").equals(frame)


def test_options_raise_the_limits_of_data_files(run, tmp_path):
    rng = np.random.default_rng(0)
    np.savez_compressed(tmp_path / "d.npz", X=rng.normal(size=(40, 6)), y=rng.integers(0, 2, 40))
    fixed = ["plan", tmp_path / "d.npz", "--kernel", "gaussian", "--bandwidth", "1"]
    code, _, err = run(*fixed, "--max-columns", "6")
    assert code == 1
    assert "has 7 columns, and the limit is 6" in err
    code, _, err = run(*fixed, "--max-unpacked", "1KB")
    assert code == 1
    assert "--max-unpacked" in err
    code, _, err = run(*fixed, "--max-unpacked", "lots")
    assert code == 2
    assert "--max-unpacked must be a size" in err
    code, _, err = run(*fixed, "--max-columns", "7", "--max-unpacked", "1MB")
    assert code == 0, err


def test_random_command_lines_end_with_a_code_and_a_few_clean_lines():
    assert list(torture.fuzz(30, seed=5)) == []
