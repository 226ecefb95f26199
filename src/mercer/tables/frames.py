"""Frames of pandas, Polars and Arrow: read by Polars, and surveyed as a file is."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mercer.planning.memory import chunk_rows
from mercer.tables.columns import Column, Columns
from mercer.tables.errors import TableError
from mercer.tables.kinds import as_written
from mercer.tables.wording import excerpt, listed, quoted

if TYPE_CHECKING:
    import polars as pl

    from mercer.tables.recognition import Recognised

# How a column that can be read in two ways is made clear in Python.
CONVERTED = (
    "Convert the column to numbers, with str.replace and astype(float) for example.",
    "Convert the column to dates, with pandas.to_datetime for example.",
)
NUMBERS = (int, float, np.number, Decimal)
BOOLEANS = (bool, np.bool_)


def is_frame(X: Any) -> bool:
    """Whether X is a data frame of pandas or Polars, or an Arrow table; raise for one without rows."""
    if type(X).__name__ == "LazyFrame":
        raise TableError(
            "`X` must hold its rows, but a LazyFrame only describes them. Call collect() first."
        )
    is_one = hasattr(X, "__arrow_c_stream__") or hasattr(X, "iloc")
    return is_one and len(getattr(X, "shape", ())) == 2


def beyond_numbers(X: Any) -> list[str]:
    """The columns of a frame that hold anything but numbers and booleans."""
    if hasattr(X, "iloc"):
        return [
            str(name)
            for name, dtype in X.dtypes.items()
            if getattr(dtype, "kind", "O") not in "biuf" and not _holds_numbers(X[name], dtype)
        ]
    frame = as_polars(X)
    return [
        name
        for name, dtype in frame.schema.items()
        if not (dtype.is_integer() or dtype.is_float() or type(dtype).__name__ in ("Boolean", "Null"))
    ]


def booleans(X: Any) -> set[str]:
    """The columns of a frame that hold booleans."""
    if hasattr(X, "iloc"):
        return {str(name) for name, dtype in X.dtypes.items() if getattr(dtype, "kind", "O") == "b"}
    return {name for name, dtype in as_polars(X).schema.items() if type(dtype).__name__ == "Boolean"}


def categories(X: Any) -> set[str]:
    """The columns of a frame whose type says that they are categories."""
    if hasattr(X, "iloc"):
        return {str(name) for name, dtype in X.dtypes.items() if hasattr(dtype, "categories")}
    schema = as_polars(X).schema
    return {n for n, dtype in schema.items() if type(dtype).__name__ in ("Categorical", "Enum")}


def as_polars(X: Any, names: Sequence[str] | None = None) -> pl.DataFrame:
    """A frame, or those of its columns that are named and exist, as Polars holds it."""
    _require_polars()
    import polars as pl

    if hasattr(X, "iloc"):
        return _from_pandas(X, names)
    frame = X if isinstance(X, pl.DataFrame) else pl.DataFrame(X)
    if names is None:
        return frame
    known = set(frame.columns)
    return frame.select([frame[name] for name in names if name in known])


def _require_polars() -> None:
    try:
        import polars  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "Text, categories, dates, times and Arrow tables are read by Polars, which is not "
            'installed. Install it with: pip install "mercer[tables]".'
        ) from error


def from_matrix(X: Any, names: Sequence[str]) -> pl.DataFrame:
    """The columns of a matrix of any values, by position."""
    _require_polars()
    import polars as pl

    A = np.asarray(X, dtype=object)  # (m, d)
    if A.ndim != 2 or A.shape[1] != len(names):
        raise ValueError(
            f"`X` must be a frame, or a matrix with the {len(names)} columns of the training data. Got "
            f"an array of shape {A.shape}."
        )
    return pl.DataFrame(
        [
            _series(name, [None if is_missing(value) else value for value in column])
            for name, column in zip(names, A.T.tolist(), strict=True)
        ]
    )


def written_in(frame: pl.DataFrame, text: Collection[str] = ()) -> Recognised:
    """Which columns of text hold numbers or dates, as in a file; those in `text` are not looked at."""
    from polars.selectors import by_name

    from mercer.tables.recognition import WaysOut, Wishes, recognise
    from mercer.tables.table import Table

    def read(columns: tuple[str, ...], rows: int) -> Iterator[pl.DataFrame]:
        return frame.select(by_name(*columns)).iter_slices(rows)

    table = Table("`X`", tuple(frame.columns), len(frame), read)
    return recognise(table, frame.columns, Wishes(text=text), WaysOut(*CONVERTED))


def survey_frames(
    frames: Iterable[pl.DataFrame],
    names: Sequence[str],
    written: Recognised | None = None,
    *,
    categorical: Collection[str] = (),
    one_hot: bool = False,
) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """How the columns of frames become features, and notes; as `fit_columns` decides for a file.

    Columns in `categorical` are categories, and kept even if they look like an identifier.  `written`
    says how columns of text are read as numbers or dates.
    """
    from mercer.tables.recognition import Recognised
    from mercer.tables.survey import Survey, doubts_of

    written = Recognised() if written is None else written
    survey = Survey(names, written.notations)
    for frame in frames:
        for part in frame.iter_slices(chunk_rows(frame.width)):
            survey.add(as_written(part, written.notations), None)
    if not survey.n_rows:
        raise TableError("`X` must have rows. Got a frame with 0 sample(s).")
    columns, notes, _ = survey.columns(set(categorical), set(categorical), not one_hot)
    if not columns:
        raise TableError(
            f"`X` has no column to learn from: {listed(names)} have a single value or look like "
            "identifiers. Name those that are useful in `categorical_features`."
        )
    return tuple(columns), (*written.notes, *doubts_of(written), *notes)


def frame_features(columns: Columns, frame: pl.DataFrame) -> NDArray[np.float32]:
    """The features of all rows of a frame, (m, d); what is converted at a time has bounded size."""
    step = chunk_rows(len(columns.feature_names))
    if len(frame) <= step:
        return columns.features(frame)[0]
    X = np.empty((len(frame), len(columns.feature_names)), np.float32)
    for first in range(0, len(frame), step):
        X[first : first + step] = columns.features(frame[first : first + step])[0]
    return X


def _from_pandas(X: Any, names: Sequence[str] | None) -> pl.DataFrame:
    import polars as pl

    labels = {str(label): label for label in X.columns}
    if len(labels) < X.shape[1]:
        names_given = [str(label) for label in X.columns]
        twice = next(name for name in names_given if names_given.count(name) > 1)
        raise TableError(f"The columns of `X` must have different names. Got {quoted(twice)} twice.")
    wanted = labels if names is None else [name for name in names if name in labels]
    return pl.DataFrame([_pandas_series(name, X[labels[name]]) for name in wanted])


def _pandas_series(name: str, column: Any) -> pl.Series:
    """A column of pandas; its own way to Polars needs a further package for text."""
    import polars as pl

    dtype = column.dtype
    if hasattr(dtype, "categories"):
        texts = pl.Series(name, column.cat.categories.astype(str).tolist(), dtype=pl.String)
        codes = pl.Series(column.cat.codes.to_numpy().astype(np.int32))
        return texts.gather(codes.set(codes < 0, None)).alias(name)
    if getattr(dtype, "tz", None) is not None:
        column = column.dt.tz_convert(None)
        dtype = column.dtype
    kind = getattr(dtype, "kind", "O")
    if kind in "Mm":
        unit = "datetime64[us]" if kind == "M" else "timedelta64[us]"
        return pl.Series(name, column.to_numpy().astype(unit))
    if kind in "biuf" and isinstance(dtype, np.dtype):
        return pl.Series(name, column.to_numpy(), nan_to_null=True)
    if kind in "iuf":
        return pl.Series(name, column.to_numpy(np.float64, na_value=np.nan), nan_to_null=True)
    return _series(name, [None if is_missing(value) else value for value in column.tolist()])


def _series(name: str, values: list[Any]) -> pl.Series:
    """Values of any Python types, None where they are missing; of several types, their texts."""
    import polars as pl

    types = {type(value) for value in values} - {type(None)}
    if not types:
        return pl.Series(name, values, dtype=pl.Null)
    if all(issubclass(kind, str) for kind in types):
        return pl.Series(name, values, dtype=pl.String)
    if all(issubclass(kind, BOOLEANS) for kind in types):
        return pl.Series(name, [None if v is None else bool(v) for v in values], dtype=pl.Boolean)
    if all(issubclass(kind, NUMBERS) and not issubclass(kind, BOOLEANS) for kind in types):
        return pl.Series(name, [None if v is None else float(v) for v in values], dtype=pl.Float64)
    if all(issubclass(kind, (str, *NUMBERS, *BOOLEANS)) for kind in types):
        return pl.Series(name, [None if v is None else str(v) for v in values], dtype=pl.String)
    try:
        return pl.Series(name, values)
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        kinds = excerpt(", ".join(sorted(kind.__name__ for kind in types)))
        raise TableError(
            f"The column {quoted(name)} must hold numbers, text, booleans, dates or times. Got {kinds}."
        ) from error


def _holds_numbers(column: Any, dtype: Any) -> bool:
    """Whether a pandas column of objects holds only numbers."""
    if getattr(dtype, "type", None) is not np.object_:
        return False
    types = {type(value) for value in column[column.notna()]}
    return all(issubclass(kind, (int, float, np.number)) for kind in types)


def is_missing(value: Any) -> bool:
    """Whether a value stands for none, in pandas, too; that of dates and times is no float."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")
