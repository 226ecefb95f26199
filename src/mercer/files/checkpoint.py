"""Checkpoints: all that an interrupted run needs, beside its data, to end as if it had not been."""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mercer.engine import Data, Problem, Settings
from mercer.files.container import machine_parts, preparation_from, read_file, write_file
from mercer.kernels import kernel_from_dict
from mercer.model.machine import KernelMachine
from mercer.planning.choose import LevelledKernel
from mercer.planning.plan import Plan
from mercer.selection.search import Selection
from mercer.training.loop import Training

Array = NDArray[Any]
# Rows whose contents are compared, spread over all of them.
COMPARED_ROWS = 1_000


def fingerprint(X: Array, y: Array) -> str:
    """Tells data apart from other data, without reading all of it."""
    rows = np.unique(np.linspace(0, len(X) - 1, COMPARED_ROWS).astype(int))
    digest = hashlib.blake2b(f"{X.shape} {X.dtype} {y.shape}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(X[rows]).tobytes())
    digest.update(str(y[rows].tolist()).encode())
    return digest.hexdigest()


def write_checkpoint(
    path: str | os.PathLike[str],
    training: Training,
    problem: Problem,
    data: Data,
    held_out: Array,
    mark: str,
) -> None:
    tensors, machine = machine_parts(problem.machine)
    made_again = ("centres", "extended_centres", "alpha")  # from the data
    tensors = {name: tensor for name, tensor in tensors.items() if name not in made_again}
    state, numbers = training.state()
    tensors |= {f"training.{name}": tensor for name, tensor in state.items()}
    tensors |= {"levelled.V": problem.levelled.V, "levelled.D": problem.levelled.D}
    tensors |= {"rows": torch.from_numpy(data.rows), "held_out": torch.from_numpy(held_out)}
    contents = {
        "machine": machine,
        "kernel": problem.kernel.to_dict(),
        "ridge": problem.ridge,
        "plan": problem.plan.to_json(indent=None),
        "selection": None if problem.selection is None else asdict(problem.selection),
        "training": numbers,
        "fingerprint": mark,
    }
    write_file(path, "checkpoint", tensors, contents)


@dataclass(frozen=True)
class Saved:
    """A checkpoint that has been read."""

    tensors: dict[str, Tensor]
    contents: dict[str, Any]

    @classmethod
    def read(cls, path: str | os.PathLike[str], mark: str) -> Saved:
        """For the data with this fingerprint."""
        tensors, contents = read_file(path, "checkpoint")
        if contents["fingerprint"] != mark:
            raise ValueError(
                f"{os.fspath(path)!r} must be resumed with the data it was made with. Got other rows, "
                "another order or another type: give the same X and y, or start without `resume`."
            )
        return cls(tensors, contents)

    @property
    def rows(self) -> Array:
        return self.tensors["rows"].numpy()

    @property
    def held_out(self) -> Array:
        return self.tensors["held_out"].numpy()

    def problem(self, data: Data, settings: Settings) -> Problem:
        """The problem as it was posed, with the points made again from the data."""
        contents = self.contents
        plan = Plan.from_json(contents["plan"])
        like = torch.zeros((), dtype=getattr(torch, plan.precision), device=settings.device)
        preparation = preparation_from(self.tensors, contents["machine"])
        memory = 0.0 if plan.data_on_disk else math.inf
        points = preparation.points(data.X, data.rows, like, True, memory)
        offset = self.tensors["offset"].to(like)
        y = torch.from_numpy(data.Y[data.rows]).to(like) - offset  # (n, l)
        # Copies, since a product may round by where in memory its matrices begin.
        V, D = (self.tensors[f"levelled.{name}"].to(like, copy=True) for name in "VD")
        kernel = kernel_from_dict(contents["machine"]["kernel"])
        machine = KernelMachine(kernel, preparation, points, torch.zeros_like(y), offset)
        return Problem(
            kernel_from_dict(contents["kernel"]),
            contents["ridge"],
            machine,
            LevelledKernel(V, D),
            plan,
            y,
            Selection.from_dict(contents["selection"]),
        )

    def restore(self, training: Training) -> None:
        tensors = {
            name.removeprefix("training."): tensor
            for name, tensor in self.tensors.items()
            if name.startswith("training.")
        }
        training.restore(tensors, self.contents["training"])
