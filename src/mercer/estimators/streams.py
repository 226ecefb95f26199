"""Fitting on rows that come in chunks: `fit(rows)` with something that gives (X, y) again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from mercer.data.rows import Array
from mercer.data.streams import RowStream
from mercer.estimators.holdout import MOST_HELD_OUT
from mercer.estimators.targets import Targets
from mercer.estimators.validation import as_numpy, more_rows, to_numpy, training_data
from mercer.planning.memory import FEATURES_SHARE, VALUE_BYTES, free_memory, parse_memory
from mercer.training.problem import Data, Streamed

# Rows that kernel, ridge, spectrum and centres are chosen from, if memory allows, for each centre and in
# all.
SAMPLE_ROWS_EACH = 2
FEWEST_SAMPLED = 200_000
# Centres that `partial_fit` takes from the rows of its first call, unless told how many.
MOST_FIRST_CENTRES = 4_000
# Rows of a block that is permuted, at most, and its share of the memory.
MOST_IN_BLOCK = 1 << 16
BLOCK_SHARE = 1 / 32


def first_centers(n_centers: Any, n: int) -> int | None:
    """The number of centres for a first call of `partial_fit` with n rows; None for all of them."""
    if n_centers is None or n_centers == "auto":
        n_centers = min(n, MOST_FIRST_CENTRES)
    return None if n_centers >= n else int(n_centers)


def is_stream(X: Any, y: Any) -> bool:
    """Whether X gives chunks of rows with their targets, and is no table itself."""
    if y is not None or hasattr(X, "shape") or hasattr(X, "__array__") or hasattr(X, "__dataframe__"):
        return False
    if isinstance(X, (list, tuple)):
        return bool(X) and isinstance(X[0], tuple)
    return callable(X) or isinstance(X, Iterable)


@dataclass(frozen=True)
class FirstPass:
    """What is known of a stream after it was read once."""

    X: Array  # (M, d)  a random sample of the rows
    numbers: Array  # (M,)  theirs in the stream, in random order
    y: Array  # (N,) or (N, l)
    sample_weight: Array | None  # (N,)

    @property
    def is_whole(self) -> bool:
        return len(self.X) == len(self.y)


def passes(rows: Any) -> Callable[[], Iterator[Any]]:
    """Start the stream from its beginning."""
    if callable(rows):
        return lambda: iter(rows())
    if iter(rows) is rows:
        raise ValueError(
            "`fit` reads its rows several times, and an iterator can be read once only. Pass a list of "
            "(X, y), an object whose iteration starts again, or a function that returns an iterator; or "
            "call `partial_fit` with each chunk."
        )
    return lambda: iter(rows)


def first_pass(estimator: Any, rows: Any, seed: int) -> FirstPass:
    """Read the stream once: its targets, its length and a sample of its rows."""
    rng = np.random.default_rng(seed)
    sample, keys, numbers = np.zeros((0, 0)), np.zeros(0), np.zeros(0, dtype=int)
    targets: list[Array] = []
    weights: list[Array] = []
    count, most = 0, 0
    for number, chunk in enumerate(passes(rows)()):
        X, y, weight = _parts(chunk, number)
        if number == 0:
            X, y = training_data(estimator, X, y, y_numeric=False)
            if estimator.columns_ is not None:
                raise ValueError(
                    "A stream must give matrices of numbers without gaps. Got text, dates or missing "
                    "values in its first chunk: encode them, or pass a whole frame."
                )
            most = _most_sampled(estimator, X.shape[1])
            sample = _array(X)[:0]
        else:
            X, y = more_rows(estimator, X), np.asarray(as_numpy(y))
        if len(X) != len(y) or (weight is not None and len(weight) != len(y)):
            raise ValueError(f"Chunk {number} of the stream has {len(X)} rows and {len(y)} targets.")
        found = _array(X)
        targets.append(y)
        if weight is not None:
            weights.append(np.asarray(as_numpy(weight)))
        drawn = rng.random(len(found))
        chosen = np.flatnonzero(drawn < (keys.max() if len(keys) == most else np.inf))
        keys = np.concatenate([keys, drawn[chosen]])
        numbers = np.concatenate([numbers, count + chosen])
        sample = np.concatenate([sample, found[chosen]])
        count += len(found)
        if len(keys) > most:  # those of the smallest random numbers
            kept = np.argpartition(keys, most - 1)[:most]
            sample, keys, numbers = sample[kept], keys[kept], numbers[kept]
    if not count:
        raise ValueError("A stream must have rows. Got none: if it is an iterator, it was read before.")
    if weights and len(weights) != len(targets):
        raise ValueError(
            "All chunks of a stream must have weights, or none. Got some with and some without."
        )
    order = rng.permutation(len(keys))
    weight = np.concatenate(weights) if weights else None
    return FirstPass(sample[order], numbers[order], np.concatenate(targets), weight)


def streamed_data(
    estimator: Any,
    rows: Any,
    known: FirstPass,
    targets: Targets,
    weight: Array | None,
    fraction: float,
    hold_out: bool,
    seed: int,
) -> tuple[Data, Array, Array]:
    """A sample to choose from, with the stream to train on; its numbers, and those of rows held out."""
    counts = np.ones(len(known.numbers), bool) if weight is None else weight[known.numbers] > 0
    numbers, X = known.numbers[counts], known.X[counts]
    size = min(MOST_HELD_OUT, int(fraction * len(X))) if hold_out else 0
    sampled, held_out = numbers[size:], numbers[:size]
    left_out = held_out
    if weight is not None:
        left_out = np.union1d(held_out, np.flatnonzero(weight == 0))
    d = X.shape[1]
    block = int(np.clip(BLOCK_SHARE * _memory(estimator) / (VALUE_BYTES * d), 1, MOST_IN_BLOCK))

    def read() -> Iterator[Array]:
        for number, chunk in enumerate(passes(rows)()):
            yield _array(more_rows(estimator, _parts(chunk, number)[0]))

    stream = RowStream(read, len(known.y), left_out, block, seed)
    Y, order = targets.encode(known.y), stream.order
    streamed = Streamed(stream, Y[order], None if weight is None else weight[order])
    found = Data(
        X[size:],
        Y[sampled],
        np.arange(len(sampled)),
        X[:size] if size else None,
        Y[held_out] if size else None,
        None if weight is None else weight[sampled],
        targets.strata(known.y[sampled]),
        targets.classify,
        numbers=sampled,
        stream=streamed,
    )
    return found, sampled, held_out


def refuse_with_stream(**given: Any) -> None:
    """Raise for what a fit on a stream cannot take."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"A fit on a stream cannot take `{name}`. Weights of rows come with the chunks, as "
                "(X, y, sample_weight); for the rest, pass arrays or memory maps instead."
            )


def seed_of(random_state: Any) -> int:
    return int(check_random_state(random_state).randint(2**31 - 1))


def _parts(chunk: Any, number: int) -> tuple[Any, Any, Any]:
    if not isinstance(chunk, (tuple, list)) or len(chunk) not in (2, 3):
        raise ValueError(
            "A stream must give (X, y) or (X, y, sample_weight) for each chunk. Chunk "
            f"{number} is a {type(chunk).__name__}."
        )
    return chunk[0], chunk[1], chunk[2] if len(chunk) == 3 else None


def _most_sampled(estimator: Any, d: int) -> int:
    """Rows that may be in memory."""
    affordable = int(FEATURES_SHARE * _memory(estimator) / (2 * VALUE_BYTES * d))
    wanted = FEWEST_SAMPLED
    if isinstance(estimator.n_centers, int):
        wanted = max(wanted, SAMPLE_ROWS_EACH * estimator.n_centers)
    return max(1, min(affordable, wanted))


def _memory(estimator: Any) -> float:
    return parse_memory(estimator.memory_limit) or free_memory() / 2


def _array(X: Any) -> Array:
    return X if isinstance(X, np.ndarray) else to_numpy(X)
