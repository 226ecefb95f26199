"""Fitting on rows that come in chunks: the first pass over a stream, and what is trained on after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state

from mercer.data.checksums import ROWS_EACH, Checksums
from mercer.data.rows import Array, Matrix
from mercer.data.streams import CHANGED, RowStream, StreamError
from mercer.engine import Data, Origin, Saved
from mercer.estimators.chunks import Chunks, NeedsColumns
from mercer.estimators.holdout import MOST_HELD_OUT
from mercer.estimators.parameters import DECISIVE
from mercer.estimators.targets import Targets
from mercer.files.origin import Mark
from mercer.planning.memory import FEATURES_SHARE, VALUE_BYTES, free_memory, parse_memory
from mercer.processes.group import Group
from mercer.processes.seats import sharing
from mercer.training.problem import MOST_IN_BLOCK, Streamed, StreamMark

# Rows that kernel, ridge, spectrum and centres are chosen from, if memory allows, for each centre and in
# all.
SAMPLE_ROWS_EACH = 2
FEWEST_SAMPLED = 200_000
# Share of the memory for a block of rows that is permuted.
BLOCK_SHARE = 1 / 32


@dataclass(frozen=True)
class FirstPass:
    """What is known of a stream after it was read once."""

    chunks: Chunks
    X: Array  # (M, d)  a random sample of the rows
    numbers: Array  # (M,)  theirs in the stream, in random order
    y: Array  # (N,) or (N, l)
    sample_weight: Array | None  # (N,)
    checksums: Checksums  # of all rows
    mark: StreamMark

    @property
    def is_whole(self) -> bool:
        return len(self.X) == len(self.y)

    def whole(self) -> tuple[Array, Array, Array | None]:
        """All rows in the order of the stream, their targets and weights."""
        X = self.X[np.argsort(self.numbers)]
        return X.astype(np.float32) if X.dtype == np.uint8 else X, self.y, self.sample_weight

    def again(self) -> Iterator[Array]:
        """Another pass, which must have the same rows."""
        sums = Checksums()
        for X, y, weight in self.chunks:
            part = slice(sums.n_rows, sums.n_rows + len(X))
            sums.add(X)
            if sums.n_rows <= len(self.y):  # else it is too long, which others see
                _check_same("target", y, self.y[part], part.start)
                if weight is not None and self.sample_weight is not None:
                    _check_same("weight", weight, self.sample_weight[part], part.start)
                place = sums.difference(self.checksums)
                if place is not None:
                    raise StreamError(
                        f"{CHANGED} Some of the rows {place:,} to {place + ROWS_EACH - 1:,} (counted "
                        "from 0) of a later one are not those of the first: give them in one order, "
                        "unchanged."
                    )
            yield X


def first_pass(estimator: Any, rows: Any, resume: Any = None, group: Group | None = None) -> FirstPass:
    """Read the stream once: its targets, its length and a sample of its rows.

    Where the run of a checkpoint goes on, the sample is drawn as it was for that.  Every rank of a group
    reads the whole stream, and draws the sample that rank 0 does.
    """
    ranks = group or Group()
    mark = None if resume is None else ranks.decided(lambda: Saved.read(resume).contents.stream)
    chunks = Chunks(estimator, rows)
    seed = ranks.from_first(seed_of(estimator.random_state)) if mark is None else mark.seed
    try:
        return _first_pass(chunks, mark, seed, ranks)
    except NeedsColumns as needs:
        chunks.survey(needs.frames)
        return _first_pass(chunks, mark, seed, ranks)


def _first_pass(chunks: Chunks, mark: StreamMark | None, seed: int, group: Group) -> FirstPass:
    rng = np.random.default_rng(seed)
    sums, keys, numbers = Checksums(), np.zeros(0), np.zeros(0, dtype=int)
    sample: Array | None = None
    targets: list[Array] = []
    weights: list[Array] = []
    for X, y, weight in chunks:
        if mark is None:
            mark = group.from_first(_mark(chunks.estimator, X.shape[1], seed, group))
        sample = X[:0].copy() if sample is None else sample
        targets.append(y)
        if weight is not None:
            weights.append(weight)
        drawn = rng.random(len(X))
        here = slice(*np.searchsorted(chunks.left_out, (sums.n_rows, sums.n_rows + len(X))))
        drawn[chunks.left_out[here] - sums.n_rows] = np.inf
        most = mark.sample
        chosen = np.flatnonzero(drawn < (keys.max() if len(keys) == most else np.inf))
        keys = np.concatenate([keys, drawn[chosen]])
        numbers = np.concatenate([numbers, sums.n_rows + chosen])
        sample = np.concatenate([sample, X[chosen]])
        sums.add(X)
        if len(keys) > most:  # those of the smallest random numbers
            kept = np.argpartition(keys, most - 1)[:most]
            sample, keys, numbers = sample[kept], keys[kept], numbers[kept]
    if sample is None or mark is None or not len(sample):
        raise ValueError("A stream must have rows. Got none: if it is an iterator, it was read before.")
    if weights and len(weights) != len(targets):
        raise ValueError(
            "All chunks of a stream must have weights, or none. Got some with and some without."
        )
    order = np.argsort(keys)  # random, and the same however the rows are cut into chunks
    weight = np.concatenate(weights) if weights else None
    all_targets = np.concatenate(targets)
    return FirstPass(chunks, sample[order], numbers[order], all_targets, weight, sums, mark)


@dataclass(frozen=True)
class StreamData:
    """A sample to choose from, with the stream to train on."""

    data: Data
    sampled: Array  # numbers of the rows of the sample
    held_out: Array  # and of those that stop training


def streamed_data(
    known: FirstPass, targets: Targets, y: Array, weight: Array | None, fraction: float
) -> StreamData:
    """`fraction` of the sample is held out.  `y` and `weight` are those of all rows, as used."""
    numbers, X = known.numbers, known.X
    if weight is not None and not weight[numbers].all():
        counts = weight[numbers] > 0
        numbers, X = numbers[counts], X[counts]
    size = min(MOST_HELD_OUT, int(fraction * len(X)))
    sampled, held_out = numbers[size:], numbers[:size]
    left_out = np.concatenate([held_out, known.chunks.left_out])
    if weight is not None:
        left_out = np.union1d(left_out, np.flatnonzero(weight == 0))
    mark = known.mark
    rows = RowStream(known.again, len(y), left_out, mark.block, mark.seed)
    found = Data(
        X[size:],
        targets.encode(y[sampled]),
        np.arange(len(sampled)),
        X[:size] if size else None,
        targets.encode(y[held_out]) if size else None,
        None if weight is None else weight[sampled],
        targets.strata(y[sampled]),
        targets.classify,
        numbers=sampled,
        stream=Streamed(rows, y, targets.encode, weight, mark),
    )
    return StreamData(found, sampled, held_out)


def stream_origin(
    estimator: Any,
    known: FirstPass,
    targets: Targets,
    y: Array,
    weight: Array | None,
    X_val: Matrix | None,
    y_val: Array | None,
    centers: Matrix | None,
) -> Origin:
    """What decides the result of this fit, by the names that the user knows."""
    block, n = known.mark.block, len(y)

    def marks() -> dict[str, Matrix | Mark | None]:
        dtype = f"chunks of {known.X.dtype}"
        encoded = (torch.from_numpy(targets.encode(y[i : i + block])) for i in range(0, n, block))
        return {
            "X": Mark((n, known.X.shape[1]), dtype, known.checksums.digest),
            "y": Mark.of_parts(encoded, y.shape, "chunks"),
            "sample_weight": weight,
            "X_val": X_val,
            "y_val": None if y_val is None else targets.encode(y_val),
            "warm_start": None,
            "centers": centers,
        }

    return Origin({name: getattr(estimator, name) for name in DECISIVE}, marks)


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


def _check_same(what: str, found: Array, known: Array, first: int) -> None:
    if np.array_equal(found, known):
        return
    different = found != known if found.shape == known.shape else np.ones(1, dtype=bool)
    row = int(np.flatnonzero(np.atleast_1d(different).reshape(len(different), -1).any(1))[0])
    raise StreamError(
        f"{CHANGED} Row {first + row:,} (counted from 0) has the {what} {found[row]} in a later one, "
        f"and {known[row]} in the first."
    )


def _mark(estimator: Any, d: int, seed: int, group: Group) -> StreamMark:
    """How many rows may be in memory."""
    memory = parse_memory(estimator.memory_limit)
    if memory is None:
        memory = free_memory() / 2 / sharing(group.seats, group.rank)
    affordable = int(FEATURES_SHARE * memory / (2 * VALUE_BYTES * d))
    wanted = FEWEST_SAMPLED
    if isinstance(estimator.n_centers, int):
        wanted = max(wanted, SAMPLE_ROWS_EACH * estimator.n_centers)
    block = int(np.clip(BLOCK_SHARE * memory / (VALUE_BYTES * d), 1, MOST_IN_BLOCK))
    return StreamMark(seed, max(1, min(affordable, wanted)), block)
