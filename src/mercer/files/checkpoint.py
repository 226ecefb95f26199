"""Checkpoints: all that an interrupted run needs, beside its data, to end as if it had not been."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from mercer.data.rows import Array, SharedRows
from mercer.files.checks import FLOATS, check_indices, check_numbers, check_plan, expect, stored_tensor
from mercer.files.container import contents_of, read_file, write_file
from mercer.files.model_file import kernel_and_inputs, kernel_data, machine_parts, target_units
from mercer.files.origin import MadeWith, Origin
from mercer.files.records import from_data, to_data
from mercer.kernels import kernel_from_dict
from mercer.method.preconditioner import LevelledKernel
from mercer.method.step import Step
from mercer.model.machine import KernelMachine
from mercer.planning.memory import data_limit
from mercer.planning.plan import Plan
from mercer.processes.group import Group
from mercer.selection.candidates import Selection
from mercer.selection.setting import LeftOut
from mercer.training.assemble import dealing, dealing_anyhow
from mercer.training.problem import (
    MOST_IN_BLOCK,
    Data,
    Problem,
    StreamMark,
    rows_each,
    streamed_points,
    training_points,
)
from mercer.training.state import Progress, State

# Numbers that may be missing, as NaN, in what was measured on the way.
MAY_BE_NAN = ("validation_score", "loss")


@dataclass(frozen=True)
class CheckpointData:
    """What a checkpoint holds beside its tensors."""

    machine: dict[str, Any]
    kernel: dict[str, Any]
    ridge: float
    plan: Plan
    training: dict[str, Any]
    origin: MadeWith
    selection: Selection | None = None
    stream: StreamMark | None = None  # of a run whose rows came in chunks


def write_checkpoint(
    path: str | os.PathLike[str],
    state: State,
    problem: Problem,
    data: Data,
    held_out: Array,
    origin: Origin,
) -> None:
    """Write the state of a run, and what it was made with."""
    tensors, machine = machine_parts(problem.machine)
    from_the_data = ("centres", "extended_centres", "alpha")
    tensors = {name: tensor for name, tensor in tensors.items() if name not in from_the_data}
    running, progress = state.parts()
    tensors |= {f"training.{name}": tensor for name, tensor in running.items()}
    tensors |= {"levelled.V": problem.preconditioner.V, "levelled.D": problem.preconditioner.D}
    if problem.left_out is not None:
        parts = vars(problem.left_out).items()
        tensors |= {f"left_out.{name}": torch.from_numpy(array) for name, array in parts}
    tensors |= {"rows": torch.from_numpy(data.training_rows), "held_out": torch.from_numpy(held_out)}
    contents = {
        "machine": machine,
        "kernel": kernel_data(problem.kernel),
        "ridge": problem.ridge,
        "plan": to_data(problem.plan),
        "selection": None if problem.selection is None else to_data(problem.selection),
        "training": progress,
        "origin": origin.to_data(),
        "stream": None if data.stream is None else to_data(data.stream.made_with),
    }
    write_file(path, "checkpoint", tensors, contents)


@dataclass(frozen=True)
class Saved:
    """A checkpoint that has been read."""

    path: str
    tensors: dict[str, Tensor]
    contents: CheckpointData

    @classmethod
    def read(cls, path: str | os.PathLike[str], origin: Origin | None = None) -> Saved:
        """To resume a run of this origin, or to look at without data."""
        tensors, data = read_file(path, "checkpoint")
        contents = from_data(CheckpointData, data, repr(os.fspath(path)))
        if origin is not None:
            origin.check(path, contents.origin)
        with contents_of(path):
            check_numbers(contents, "", MAY_BE_NAN)
            _check_rows(tensors, contents, math.inf if origin is None else origin.n_rows)
        return cls(os.fspath(path), tensors, contents)

    @property
    def rows(self) -> Array:
        return self.tensors["rows"].numpy()

    @property
    def held_out(self) -> Array:
        return self.tensors["held_out"].numpy()

    def problem(
        self,
        data: Data,
        device: torch.device,
        memory: float | None = None,
        group: Group | None = None,
    ) -> Problem:
        """The problem as it was, with the points prepared again from the data.

        Of `memory`, the bytes that each rank of the group may now use, depends only what is kept in it.
        """
        with contents_of(self.path):
            return self._problem(data, device, memory, group or Group())

    def _problem(self, data: Data, device: torch.device, memory: float | None, group: Group) -> Problem:
        contents = self.contents
        solved = contents.plan.direct and contents.plan.n_centers is None
        dealt = isinstance(data.X, SharedRows) and not solved
        plan = replace(contents.plan, ranks=group.size, dealt=dealt)
        like = torch.zeros((), dtype=getattr(torch, plan.precision), device=device)
        kernel, inputs = kernel_and_inputs(self.tensors, contents.machine)
        n_features, n_outputs = data.X.shape[1], data.Y.shape[1]
        expect(inputs.n_features == n_features, f"it must be of data with {n_features} features")
        limit = math.inf if memory is None else data_limit(device, memory)
        if data.stream is not None:  # a sample of the rows, which is in memory
            limit = math.inf
        elif plan.data_on_disk:
            limit = 0.0
        numbers = (plan.n, plan.subsample_size, plan.batch_size)
        deal = dealing(*numbers, group, device, plan.n_closing) if dealt else None
        if dealt and plan.n_centers is not None:
            deal = dealing_anyhow(plan.n, group, device, plan.n_closing)
        points = training_points(data, inputs, like, limit, deal, plan.n_closing)
        if memory is not None and data.stream is None:
            plan = replace(plan, data_on_disk=rows_each(points) > limit)
            plan = plan.within(group.size * memory, data.n_held_out)
        units = target_units(self.tensors, contents.machine, n_outputs)
        y = data.targets(units, like)  # (n, l)
        expect(bool(torch.isfinite(y).all()), "`offset` must be the mean of the targets")
        expect(points.bound < torch.finfo(points.dtype).max, "its features must have finite lengths")
        V = stored_tensor(self.tensors, "levelled.V", (None, None), *FLOATS)
        D = stored_tensor(self.tensors, "levelled.D", (V.shape[1],), *FLOATS)
        p = plan.n_weighted
        given = len(points) if plan.n_centers is None else plan.n
        if data.centers is not None:
            given = len(data.centers)
        expect(len(V) <= p <= given, "the subsample must be some of the centres, and these of the rows")
        centres = points if plan.n_centers is None else points[:p]
        if data.centers is not None:
            centres = inputs.points(data.centers, None, like, as_floats=True)
        machine = KernelMachine(kernel, inputs, centres, y.new_zeros(p, n_outputs), units)
        return Problem(
            kernel_from_dict(contents.kernel),
            contents.ridge,
            machine,
            LevelledKernel(V.to(like), D.to(like)),
            plan,
            y,
            contents.selection,
            self._left_out(len(data.Y), n_outputs),
            streamed_points(data, machine) or (None if plan.n_centers is None else points),
        )

    def _left_out(self, n_rows: int, n_outputs: int) -> LeftOut | None:
        if "left_out.rows" not in self.tensors:
            return None
        rows = stored_tensor(self.tensors, "left_out.rows", (None,), torch.int64)
        inside = not len(rows) or bool((rows.min() >= 0) & (rows.max() < n_rows))
        expect(inside, "rows left out must be rows of the data")
        shapes = {"decisions": (len(rows), n_outputs), "weights": (len(rows),)}
        parts = {
            name: stored_tensor(self.tensors, f"left_out.{name}", shape, torch.float64).numpy()
            for name, shape in shapes.items()
        }
        return LeftOut(rows.numpy(), parts["decisions"], parts["weights"])

    def state(self, begun: State, n_panels: int) -> State:
        """The state of the run, for one that has begun anew on the same problem."""
        tensors = {
            name.removeprefix("training."): tensor
            for name, tensor in self.tensors.items()
            if name.startswith("training.")
        }
        with contents_of(self.path):
            _check_tensors(tensors, begun)
            state = State.from_parts(tensors, self.contents.training, begun.weights)
            _check_progress(state.progress, begun.progress.step, n_panels)
            _check_closing(state.progress, self.contents.plan.n_closing)
        # When to stop is the model's to say, and may have changed since.
        stopping = begun.progress.stopping
        state.progress.stopping = replace(
            state.progress.stopping, patience=stopping.patience, tolerance=stopping.tolerance
        )
        return state


def _check_rows(tensors: dict[str, Tensor], contents: CheckpointData, n_rows: float) -> None:
    """Rows and plan must fit together."""
    plan, ridge = contents.plan, contents.ridge
    rows, held_out = (
        stored_tensor(tensors, name, (None,), torch.int64) for name in ("rows", "held_out")
    )
    check_indices("rows", torch.cat([rows, held_out]), n_rows)
    n = len(rows)
    expect(n == plan.n and n >= 1, f"the plan must be for the {n} rows it trains on")
    expect(1 <= plan.batch_size <= n, "the batch must have between one row and all")
    closes = plan.n_closing == len(held_out) and plan.direct == (plan.n_centers is not None)
    expect(plan.n_closing == 0 or closes, "closing epochs must train on the rows held out")
    expect(
        plan.n_centers is None or (plan.n_centers >= 1 and 0 <= plan.n_temporary <= n),
        "there must be a centre, and no more temporary centres than rows",
    )
    stream = contents.stream
    expect(
        stream is None
        or (stream.seed >= 0 and stream.sample >= 1 and 1 <= stream.block <= MOST_IN_BLOCK),
        "the sample and the blocks of a stream must have rows",
    )
    expect(plan.precision in ("float32", "float64"), "the precision must be float32 or float64")
    check_plan(plan)
    not_negative = (plan.ridge, ridge, plan.kept_memory)
    expect(
        0 < plan.step_size < math.inf and all(0 <= number < math.inf for number in not_negative),
        "step size, ridge and kept memory must be finite, and none of them negative",
    )


def _check_tensors(tensors: dict[str, Tensor], begun: State) -> None:
    """Tensors must have the shapes of a run that has begun on the same problem."""
    shapes = {name: tuple(tensor.shape) for name, tensor in begun.parts()[0].items()}
    expect(set(shapes) <= set(tensors), f"it must have {', '.join(sorted(shapes))}")
    shapes["best"] = shapes["refined"] = tuple(begun.weights.shape)
    if begun.settled is not None:
        shapes["best_predictions"] = tuple(begun.settled.shape)
    for name in ({field.name for field in fields(State)} | set(shapes)) & set(tensors):
        # Weights may be infinite where training has just diverged, which the guard is for.
        stored_tensor(tensors, name, shapes.get(name, ()), *FLOATS, finite=name != "weights")
    expect(("best" in tensors) == ("best_predictions" in tensors), "the best weights are incomplete")
    safe = tensors["safe"]
    expect(bool((safe > 0).all() & (safe <= 1).all()), "`safe` must be between 0 and 1")


def _check_progress(progress: Progress, step: Step, n_panels: int) -> None:
    """Progress must be possible with this step and so many panels."""
    check_numbers(progress, "training", MAY_BE_NAN)
    expect(
        replace(progress.step, eta=step.eta) == step and 0 < progress.step.eta <= step.eta,
        "its step must be that of its plan, or smaller",
    )
    losses = [progress.error, progress.residual, progress.best_residual, progress.seconds]
    losses += [number for epoch in progress.epochs for number in (epoch.train_loss, epoch.seconds)]
    expect(min(losses) >= 0, "losses and times must not be negative")
    expect(
        progress.epoch == len(progress.epochs) + 1 and 0 <= progress.panel <= n_panels,
        "it must be at a panel of the epoch after those that it has",
    )


def _check_closing(progress: Progress, n_closing: int) -> None:
    """Closing epochs must be possible in this run, and have begun."""
    closing = progress.closing
    if closing is None:
        return
    expect(n_closing > 0, "closing epochs need rows that were held out")
    begun = 2 <= closing.first <= progress.epoch and closing.most >= 1
    expect(begun, "closing epochs must follow others, and be some")
    expect(min(closing.level, closing.residual) >= 0, "residuals of closing epochs must not be negative")
