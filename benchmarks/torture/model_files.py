"""Thousands of damaged model files and checkpoints: each is refused in one sentence, or it works.

A damaged model may load if it then predicts finite numbers, and a damaged checkpoint may be resumed if
training then ends as training may.  Anything else is a failure: another exception, a crash, a parameter
that names a path or a device, more memory than the limit, or a process that does not end.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mercer
import mercer.preparation.settings
from benchmarks.torture.damage import damaged
from benchmarks.torture.record import Count, Size
from mercer import Checkpoint, DivergenceError, KernelClassifier, KernelRegressor

Array = NDArray[Any]

CASES = 60_000  # of the full run
BATCH = 1_000  # of one process
# Memory that a process may take beyond what it has when it begins.
HEADROOM = 2 << 30
# A case takes milliseconds; a process that takes so long for all of its cases hangs.
BATCH_SECONDS = 900
ROWS = 40
SETTINGS: dict[str, Any] = {
    "kernel": "gaussian",
    "bandwidth": 2.0,
    "ridge": 0.01,
    "random_state": 0,
    "early_stopping": True,
    "max_iter": 3,
    "tol": 0.0,
}
NAMES = ("classifier", "two classes", "regressor", "bytes", "checkpoint")
DEFAULTS = KernelRegressor().get_params()
# Longest sentence that still is one.
MOST_CHARACTERS = 1_000
MACHINE = ("device", "memory_limit", "n_jobs", "callbacks", "verbose")


def examples() -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 3)) * [1, 10, 0]
    return X, np.sin(X[:, 0])


def write_whole_files(folder: Path) -> None:
    """Small files of every kind, whole."""
    X, y = examples()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        labels = np.array(["low", "middle", "high"])[np.digitize(y, [-0.5, 0.5])]
        KernelClassifier(**SETTINGS).fit(X, labels).save(folder / "classifier", {"made": ["by", 1]})
        scaled = KernelClassifier("laplacian", scale=True, n_pca_components=1, precision="float64")
        scaled.fit(X, y > 0).save(folder / "two classes")
        KernelRegressor("neural_tangent", bandwidth=3.0, ridge=0.1).fit(X, np.c_[y, -y]).save(
            folder / "regressor"
        )
        KernelRegressor(**SETTINGS, callbacks=[Checkpoint(folder / "checkpoint", 0)]).fit(X, y)
        pixels = np.random.default_rng(1).integers(0, 256, size=(ROWS, 64)).astype(np.float32)
        _byte_regressor(pixels).save(folder / "bytes")


def _byte_regressor(pixels: Array) -> KernelRegressor:
    """A model of bytes, also on machines where these are no faster."""
    from dataclasses import replace

    import mercer.engine

    module: Any = mercer.preparation.settings
    real = module.measure_resource
    module.measure_resource = lambda *given: replace(real(*given), integer_gain=4.0)
    try:
        return KernelRegressor("gaussian", bandwidth=900.0, ridge=0.1).fit(pixels, pixels[:, 0])
    finally:
        module.measure_resource = real


def verdict(path: Path, *, checkpoint: bool) -> str:
    """What is wrong with how a file was treated; nothing if it was refused or works."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = _resumed(path) if checkpoint else mercer.load(path)
    except DivergenceError:
        return "" if checkpoint else "DivergenceError"
    except ValueError as error:
        return _not_a_sentence(error) or ("" if repr(str(path)) in str(error) else f"unnamed: {error}")
    except Exception as error:  # RecursionError and MemoryError as well
        return f"{type(error).__name__}: {str(error)[:200]}"
    changed = [name for name in MACHINE if getattr(model, name) != DEFAULTS[name]]
    if changed:
        return f"the file chose {changed}"
    try:
        (str(model.plan_), str(model.selection_), repr(model))
        X = examples()[0] if model.n_features_in_ == 3 else np.zeros((2, model.n_features_in_))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the file may name the features
            found = model.predict_proba(X) if isinstance(model, KernelClassifier) else model.predict(X)
            model.predict(X)
    except ValueError as error:
        return _not_a_sentence(error)
    except Exception as error:
        return f"after loading, {type(error).__name__}: {str(error)[:200]}"
    return "" if np.isfinite(found).all() else "predictions are not finite"


def _not_a_sentence(error: ValueError) -> str:
    text = str(error)
    if type(error) is not ValueError:
        return f"{type(error).__name__}: {text[:200]}"
    wrong = "\n" in text or len(text) > MOST_CHARACTERS or not text.endswith(".")
    return f"not a sentence: {text[:200]!r}" if wrong else ""


def _resumed(path: Path) -> KernelRegressor:
    X, y = examples()
    return KernelRegressor(**SETTINGS).fit(X, y, resume=path)


def case(whole: dict[str, bytes], number: int, seed: int) -> tuple[str, bytes]:
    """The damaged file of a number, and the name of the file it was made from."""
    rng = np.random.default_rng([seed, number])
    name, other = (NAMES[int(rng.integers(len(NAMES)))] for _ in range(2))
    return name, damaged(whole[name], whole[other], rng)


def work(folder: Path, first: int, count: int, seed: int, kept: Path | None = None) -> None:
    """Try some cases in this process; prints the number of each, and what is wrong."""
    used = next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmSize")
    )
    resource.setrlimit(resource.RLIMIT_AS, (used + HEADROOM, used + HEADROOM))
    whole = {name: (folder / name).read_bytes() for name in NAMES}
    path = folder / f"case {first}"
    for number in range(first, first + count):
        name, raw = case(whole, number, seed)
        print(number, end=" ", flush=True)
        path.write_bytes(raw)
        wrong = verdict(path, checkpoint=name == "checkpoint")
        print(f"{name}: {wrong}" if wrong else "", flush=True)
        if wrong and kept is not None:
            (kept / f"{seed}-{number}").write_bytes(raw)
    path.unlink()


def run(size: Size) -> list[Count]:
    cases, failures = max(BATCH, round(CASES * size.scale)), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_whole_files(folder)
        first = 0
        while first < cases:
            count = min(BATCH, cases - first)
            done, found = _process(folder, first, count, size.seed)
            failures += found
            first += done
    return [Count("a damaged file is refused in one sentence, or works", cases, tuple(failures))]


def _process(folder: Path, first: int, count: int, seed: int) -> tuple[int, list[str]]:
    """Cases in a process of their own: how many were tried, and what was wrong."""
    log = folder / "log"
    command = [sys.executable, "-m", "benchmarks.torture.model_files", str(folder)]
    with log.open("wb") as file:
        process = subprocess.Popen([*command, str(first), str(count), str(seed)], stdout=file)
        try:
            ended = f"the process ended with {process.wait(BATCH_SECONDS)}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ended = "the process hung"
    lines = log.read_text(errors="replace").splitlines()
    parted = [line.partition(" ") for line in lines]
    failures = [f"seed {seed}, case {number}: {wrong}" for number, _, wrong in parted if wrong.strip()]
    if process.returncode != 0:  # the last case that began was its last
        last = int(parted[-1][0]) if parted else first
        return last - first + 1, [*failures, f"seed {seed}, case {last}: {ended}"]
    return count, failures


if __name__ == "__main__":
    start, number_of_cases, seed_given = map(int, sys.argv[2:5])
    work(Path(sys.argv[1]), start, number_of_cases, seed_given, *map(Path, sys.argv[5:]))
