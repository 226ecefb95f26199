"""What a run was made with, so that its checkpoint is resumed with nothing else."""

from __future__ import annotations

import hashlib
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import Any

import numpy as np
from torch import Tensor

from mercer.data.rows import Matrix, SharedRows, chunks
from mercer.kernels import Kernel, canonical_name


@dataclass(frozen=True)
class Mark:
    """Distinguishes an array from any other, whatever its layout in memory and its device."""

    shape: tuple[int, ...]
    dtype: str
    digest: str

    @classmethod
    def of(cls, values: Matrix) -> Mark:
        rows = values if isinstance(values, SharedRows) else values.reshape(len(values), -1)
        dtype = str(values.dtype).removeprefix("torch.")
        return cls.of_parts((chunk for _, chunk in chunks(rows, None)), tuple(values.shape), dtype)

    @classmethod
    def of_parts(cls, parts: Iterable[Tensor], shape: tuple[int, ...], dtype: str) -> Mark:
        """Of an array that comes in parts, one after another."""
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            digest.update(part.cpu().contiguous().reshape(-1).numpy().data)
        return cls(shape, dtype, digest.hexdigest())

    def __str__(self) -> str:
        return f"of shape {self.shape} in {self.dtype}"


@dataclass(frozen=True)
class MadeWith:
    """What a checkpoint holds of the parameters and the data of its run."""

    parameters: dict[str, Any]
    data: dict[str, Mark | None]  # by the names that the user gives arrays; None for those not given


@dataclass(frozen=True)
class Origin:
    """The parameters that decide what a run computes, and its data, by the names that the user knows."""

    parameters: Mapping[str, Any]
    data: Callable[[], Mapping[str, Matrix | Mark | None]]  # asked for once, when it is first needed

    @cached_property
    def made_with(self) -> MadeWith:
        """What a checkpoint keeps of it.  All of the data is read the first time."""
        marks = {
            name: x if x is None or isinstance(x, Mark) else Mark.of(x)
            for name, x in self.data().items()
        }
        return MadeWith({name: _plain(value) for name, value in self.parameters.items()}, marks)

    @property
    def n_rows(self) -> int:
        mark = self.made_with.data["X"]
        return 0 if mark is None else mark.shape[0]

    def facts(self) -> dict[str, str]:
        """Parameters and data, in words that are the same only for the same."""
        parameters = {f"`{name}`": repr(value) for name, value in self.made_with.parameters.items()}
        data = {
            f"`{name}`": "none" if mark is None else f"one {mark} with checksum {mark.digest[:8]}"
            for name, mark in self.made_with.data.items()
        }
        return {**parameters, **data}

    def to_data(self) -> dict[str, Any]:
        return asdict(self.made_with)

    def check(self, path: str | os.PathLike[str], made: MadeWith) -> None:
        """Raise if the run of a checkpoint was made with anything else."""
        was = f"{os.fspath(path)!r} was made"
        for name, value in self.made_with.parameters.items():
            other = made.parameters.get(name, value)  # a file of an older version may lack it
            if other != value:  # of any length: a file may hold anything
                was_set, is_set = reprlib.repr(other), reprlib.repr(value)
                raise ValueError(
                    f"{was} with {name}={was_set}, and this model has {name}={is_set}: set the same "
                    "value, or start without `resume`."
                )
        for name, mark in self.made_with.data.items():
            found = made.data.get(name)
            if found == mark:
                continue
            if found is None or mark is None:
                how, here = ("with", "none") if mark is None else ("without", "one")
                difference = f"{how} `{name}`, and this fit has {here}"
            elif (found.shape, found.dtype) != (mark.shape, mark.dtype):
                difference = f"with `{name}` {found}, and this one is {mark}"
            else:
                difference = f"with other values in `{name}`, or in another order"
            raise ValueError(
                f"{was} {difference}: give the data it was made with, or start without `resume`."
            )


def _plain(value: Any) -> Any:
    """A parameter as JSON has it; equal for values that compute the same."""
    if isinstance(value, str):
        return canonical_name(value)
    if value is None or isinstance(value, (bool, np.bool_)):
        return None if value is None else bool(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return repr(value) if isinstance(value, Kernel) else getattr(value, "__qualname__", repr(value))
