"""An estimator as one of several ranks: what they must agree on, and predictions shared out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

import mercer
from mercer.data.rows import Array
from mercer.engine import Events, Origin, Saved
from mercer.estimators.parameters import WHEN_TO_STOP
from mercer.estimators.validation import to_numpy
from mercer.model.machine import KernelMachine
from mercer.operators.summation import pieces
from mercer.operators.tiled import panel_rows
from mercer.processes.group import Group
from mercer.processes.joining import restarts
from mercer.processes.sameness import check_same
from mercer.processes.seats import share_of_cores
from mercer.training.events.callbacks import Callback, Checkpoint


def facts(estimator: Any, origin: Origin) -> dict[str, str]:
    """What all ranks must have in common to train together."""
    versions = {"version of Mercer": mercer.__version__, "version of PyTorch": torch.__version__}
    limits = {f"`{name}`": repr(getattr(estimator, name)) for name in WHEN_TO_STOP}
    return {"estimator": type(estimator).__name__, **versions, **limits, **origin.facts()}


def saved_run(
    resume: str | os.PathLike[str] | None,
    callbacks: Sequence[Callback],
    origin: Origin,
    group: Group,
) -> Saved | None:
    """The checkpoint to go on from, as rank 0 reads it.

    After a restart by `torchrun` that is the one which a `Checkpoint` callback wrote before the fault,
    if it belongs to this fit.
    """

    # A launcher counts the faults of its own ranks, so that of rank 0 may know of none.
    restarted = any(group.gathered(restarts() > 0))

    def read() -> Saved | None:
        if resume is not None or not restarted:
            return None if resume is None else Saved.read(resume, origin)
        for callback in callbacks:
            if isinstance(callback, Checkpoint) and os.path.exists(callback.path):
                with suppress(ValueError):  # it belongs to another fit of the program
                    return Saved.read(callback.path, origin)
        return None

    return group.decided(read)


def shared_decision(machine: KernelMachine, x: Array | Tensor, group: Group, verbose: int) -> Array:
    """f at each row, (m, l), of which each rank computes some; all get them all."""
    check_same(group, {"shape of X": str(tuple(x.shape))})
    # Whole panels, since a row rounds as others do only if there are enough of them.
    height = panel_rows(machine.device)
    panels = pieces(0, max(1, len(x) // height), -(-max(1, len(x) // height) // group.size))
    own = x[:0]
    if group.rank < len(panels):
        first, last = height * panels[group.rank].start, height * panels[group.rank].stop
        own = x[first : len(x) if group.rank + 1 == len(panels) else last]
    return np.concatenate(group.gathered(own_decision(machine, own, group, verbose)))


def own_decision(machine: KernelMachine, x: Array | Tensor, group: Group, verbose: int) -> Array:
    """f at each row of this rank, (m, l), perhaps none; all ranks call this together."""
    progress = Events(verbose=verbose if group.is_first else 0).on_rows
    return to_numpy(machine.predict(x, progress))


def cores_for(group: Group | None) -> int | None:
    """Cores of this rank, if it is one."""
    return None if group is None else share_of_cores(group.seats, group.rank)
