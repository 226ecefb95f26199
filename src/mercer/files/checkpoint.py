"""Checkpoints: all that an interrupted run needs, beside its data, to end as if it had not been."""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mercer.data.rows import Array, Matrix, take
from mercer.data.targets import TargetUnits
from mercer.files.container import read_file, write_file
from mercer.files.model_file import MachineData, kernel_and_inputs, kernel_data, machine_parts
from mercer.files.records import from_data, to_data
from mercer.kernels import kernel_from_dict
from mercer.method.preconditioner import LevelledKernel
from mercer.model.machine import KernelMachine
from mercer.planning.plan import Plan
from mercer.selection.search import Selection
from mercer.training.problem import Data, Problem
from mercer.training.state import State

# Rows whose contents are compared, spread over all of them.
COMPARED_ROWS = 1_000


def fingerprint(X: Matrix, y: Array) -> str:
    """Distinguishes data from other data, without reading all of it."""
    rows = np.unique(np.linspace(0, len(X) - 1, COMPARED_ROWS).astype(int))
    values = take(X, rows).cpu().numpy()
    digest = hashlib.blake2b(f"{tuple(X.shape)} {values.dtype} {y.shape}".encode(), digest_size=16)
    digest.update(values.tobytes())
    digest.update(str(y[rows].tolist()).encode())
    return digest.hexdigest()


def write_checkpoint(
    path: str | os.PathLike[str],
    state: State,
    problem: Problem,
    data: Data,
    held_out: Array,
    mark: str,
) -> None:
    """Write the state of a run; `mark` is the fingerprint of its data."""
    tensors, machine = machine_parts(problem.machine)
    from_the_data = ("centres", "extended_centres", "alpha")
    tensors = {name: tensor for name, tensor in tensors.items() if name not in from_the_data}
    running, progress = state.parts()
    tensors |= {f"training.{name}": tensor for name, tensor in running.items()}
    tensors |= {"levelled.V": problem.preconditioner.V, "levelled.D": problem.preconditioner.D}
    tensors |= {"rows": torch.from_numpy(data.rows), "held_out": torch.from_numpy(held_out)}
    contents = {
        "machine": machine,
        "kernel": kernel_data(problem.kernel),
        "ridge": problem.ridge,
        "plan": to_data(problem.plan),
        "selection": None if problem.selection is None else to_data(problem.selection),
        "training": progress,
        "fingerprint": mark,
    }
    write_file(path, "checkpoint", tensors, contents)


@dataclass(frozen=True)
class Saved:
    """A checkpoint that has been read."""

    tensors: dict[str, Tensor]
    contents: dict[str, Any]

    @classmethod
    def read(cls, path: str | os.PathLike[str], mark: str | None = None) -> Saved:
        """For the data with this fingerprint, or without data."""
        tensors, contents = read_file(path, "checkpoint")
        if mark is not None and contents["fingerprint"] != mark:
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

    def problem(self, data: Data, device: torch.device) -> Problem:
        """The problem as it was, with the points prepared again from the data."""
        contents = self.contents
        plan = from_data(Plan, contents["plan"], "The checkpoint")
        like = torch.zeros((), dtype=getattr(torch, plan.precision), device=device)
        kernel, inputs = kernel_and_inputs(self.tensors, contents["machine"])
        memory = 0.0 if plan.data_on_disk else math.inf
        points = inputs.points(data.X, data.rows, like, True, memory)
        scale = from_data(MachineData, contents["machine"], "The checkpoint").target_scale
        units = TargetUnits(self.tensors["offset"].double(), scale)
        y = units.encode(data.Y[data.rows], like)  # (n, l)
        # Copies, since a product may round by where in memory its matrices begin.
        V, D = (self.tensors[f"levelled.{name}"].to(like, copy=True) for name in "VD")
        selection = contents["selection"]
        return Problem(
            kernel_from_dict(contents["kernel"]),
            contents["ridge"],
            KernelMachine(kernel, inputs, points, torch.zeros_like(y), units),
            LevelledKernel(V, D),
            plan,
            y,
            None if selection is None else from_data(Selection, selection, "The checkpoint"),
        )

    def state(self, like: Tensor) -> State:
        """The state of the run, on the device and in the precision of `like`."""
        tensors = {
            name.removeprefix("training."): tensor
            for name, tensor in self.tensors.items()
            if name.startswith("training.")
        }
        return State.from_parts(tensors, self.contents["training"], like)
