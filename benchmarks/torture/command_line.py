"""Random command lines with hostile files: an exit code, a few clean lines, no traceback.

python -m benchmarks.torture.command_line --cases 1000 --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.torture.hostile_files import HOSTILE_TEXT, NUMBERS, Files, damaged, valid_files
from benchmarks.torture.record import Count, Size
from benchmarks.torture.sandbox import failures
from benchmarks.torture.tables import CORPUS
from mercer.cli import main as mercer

MODULE = "benchmarks.torture.command_line"
FULL_CASES = 1_500
BATCH = 250
# Lines on standard error beside those of the epochs: an error, or notes on the columns of a table.
MOST_LINES = 10
CODES = (0, 1, 2, 130)
# All that a terminal would obey or hide, but the end of a line.
RAW = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# Options by subcommand, with values that they may well be given.
COLUMN = ("y", "n", "text", "flag", "day", "x0", "x1", "list", "prediction", "none")
DATA = {
    "--max-columns": ("5", "7", "100", "10000000"),
    "--max-unpacked": ("1KB", "10MB", "1e3", "auto"),
    "--n-jobs": ("1", "2", "-1"),
}
PLAN = {
    "--target": COLUMN,
    "--task": ("classification", "regression"),
    "--drop": COLUMN,
    "--keep": COLUMN,
    "--kernel": ("auto", "rbf", "laplacian", "neural_tangent"),
    "--bandwidth": ("1e-30", "0.1", "3", "1e30"),
    "--ridge": ("0", "1e-9", "1", "1e30"),
    "--memory": ("1KB", "10MB", "4GB"),
    "--device": ("cpu", "cuda", "meta", "none"),
    "--seed": ("0", "1", "-1", "4294967296"),
}
FIT = {
    "--holdout": ("0", "0.3", "0.99"),
    "--epochs": ("1", "3"),
    "--checkpoint-minutes": ("0", "1"),
    **dict.fromkeys(("--test", "--test-target", "--checkpoint", "--resume", "--report"), ("none", ".")),
}
VALUES: dict[str, dict[str, tuple[str, ...]]] = {
    "plan": {**DATA, **PLAN, "--capacity": ("1", "1e9", "1e30")},
    "fit": {**DATA, **PLAN, **FIT},
    "predict": {**DATA, "--with": COLUMN, "--output": ("out.csv", "out.parquet", "-")},
    "evaluate": {**DATA, "--target": COLUMN},
    "info": {},
}
FLAGS = {
    "plan": ("--json",),
    "fit": ("--json", "--force", "--quiet"),
    "predict": ("--json", "--force", "--quiet", "--proba", "--allow-formulas"),
    "evaluate": ("--json", "--quiet"),
    "info": ("--json",),
}


def run(size: Size) -> list[Count]:
    cases = max(1, round(size.scale * FULL_CASES))
    found = tuple(f"seed {size.seed}, {line}" for line in fuzz(cases, size.seed))
    return [Count("command lines end with an exit code and a few clean lines", cases, found)]


def fuzz(cases: int, seed: int) -> Iterator[str]:
    """The failures among this many command lines."""
    files = valid_files()
    for first in range(0, cases, BATCH):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            data, model = folder / "plain.csv", folder / "model"
            data.write_bytes(files["plain.csv"])
            fitted = quietly(["fit", str(data), "-o", str(model), "--kernel", "gaussian", "-q"])
            assert fitted[0] == 0, fitted
            cases_here = []
            for number in range(first, min(first + BATCH, cases)):
                rng = random.Random(f"{seed} {number}")
                cases_here.append(folder / f"{number}.json")
                words = command_line(rng, files, folder, number, model)
                cases_here[-1].write_text(json.dumps(words), encoding="utf-8")
            for case, wrong in failures(MODULE, cases_here):
                yield f"case {case.stem}: {wrong}; {case.read_text(encoding='utf-8')}"


def command_line(rng: random.Random, files: Files, folder: Path, number: int, model: Path) -> list[str]:
    """A subcommand with its files, most of them hostile, and some options."""
    name, data = damaged(rng, files) if rng.random() < 0.5 else rng.choice(list(files.items()))
    path = folder / f"{number}-{rng.choice(('', '', *HOSTILE_TEXT[:2]))}{name}"
    path.write_bytes(data)
    kept = rng.choice(sorted(CORPUS.iterdir()))
    table = rng.choice((path, path, path, path, path, path, kept, kept, folder, folder / "none"))
    command = rng.choice(list(VALUES))
    machine = rng.choice((model, model, model, model, model, model, table, folder / "none"))
    words = [command]
    if command in ("predict", "evaluate", "info"):
        words.append(str(machine))
    if command != "info":
        words.append(str(table))
    if command == "fit":
        words += ["-o", str(folder / f"{number}-model"), "--epochs", "2"]
    hostile = (*NUMBERS, *HOSTILE_TEXT, str(table), str(folder / f"{number}-out"))
    options = VALUES[command]
    for option in rng.sample(list(options), min(len(options), rng.choice((0, 0, 1, 1, 2, 3)))):
        value = rng.choice(options[option] if rng.random() < 0.7 else hostile)
        words += [option, value.replace("\0", "")]
    words += [flag for flag in FLAGS[command] if rng.random() < 0.3]
    if rng.random() < 0.05:
        words.insert(rng.randrange(len(words)), rng.choice(hostile).replace("\0", ""))
    return words


def quietly(words: list[str]) -> tuple[int, str, str]:
    """The command in this process: exit code, standard output, standard error."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = mercer(words)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode(errors="replace"))
    return code, texts[0], texts[1]


def check(case: Path) -> str | None:
    """What is wrong with how a command ends, if anything."""
    words = json.loads(case.read_text(encoding="utf-8"))
    os.chdir(case.parent)
    code, out, err = quietly(words)
    lines = [line for line in err.splitlines() if not line.startswith("epoch ")]
    if code not in CODES:
        return f"ends with {code}"
    if code == 1 and "Unexpected" in err:
        return f"is not foreseen: {err[-300:]}"
    if len(lines) > MOST_LINES or (code and len(lines) < 1):
        return f"says {len(lines)} lines: {err[:300]!r}"
    if "Traceback" in out + err:
        return f"shows a traceback: {err[-300:]}"
    raw = RAW.search(err if words[0] == "predict" else out + err)
    return None if raw is None else f"prints {raw[0]!r}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", type=int, default=FULL_CASES)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for line in fuzz(options.cases, options.seed):
        print(line, flush=True)


if __name__ == "__main__":
    main()
