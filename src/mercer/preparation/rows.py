"""The user's rows as points of the chosen kernel, and their targets as training needs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mercer.data.dealt_points import AnyPoints
from mercer.data.inputs import Inputs
from mercer.data.rows import chunks, widest
from mercer.data.streams import StreamedPoints
from mercer.kernels import Custom, as_kernel, in_units
from mercer.kernels.base import Kernel
from mercer.method.direct import JITTER
from mercer.method.preconditioner import LevelledKernel
from mercer.model.machine import KernelMachine
from mercer.operators.deal import Deal
from mercer.planning.direct import is_small
from mercer.planning.levelling import Requests
from mercer.planning.memory import data_limit
from mercer.planning.plan import Plan
from mercer.planning.resource import Resource
from mercer.preparation.choice import choose_for_all
from mercer.preparation.settings import Settings
from mercer.processes.group import Group
from mercer.selection.setting import Chosen
from mercer.training.assemble import dealing_anyhow
from mercer.training.problem import Data, Problem, training_points

# Of the squared length of a row, what may lie outside the space of an earlier fit by rounding.
UNSEEN_SHARE = 1e-9


@dataclass(frozen=True)
class Prepared:
    """All that a plan depends on except the points, which are large and may have to be dealt again."""

    data: Data
    settings: Settings
    group: Group | None  # None outside a process group
    resource: Resource
    chosen: Chosen
    kernel: Kernel  # in the units of the points
    y: Tensor  # (n, l)  centred
    ridge: float  # in units of the largest sample weight
    solves: bool  # the equations are solved at once
    limit: float  # bytes of points that a rank holds in memory; more of them lie in a file
    n_closing: int  # held-out rows that may be trained on in the end; they follow the others

    @property
    def ranks(self) -> Group:
        return self.group or Group()

    @property
    def n(self) -> int:
        """Rows here to train on; of a stream, those of its sample."""
        return len(self.data.rows)

    @property
    def n_outputs(self) -> int:
        return self.y.shape[1]

    @property
    def requests(self) -> Requests:
        """Numbers of the plan that the user fixed."""
        wanted = self.settings.requests
        if wanted.batch_size is None:
            return wanted
        return replace(wanted, batch_size=min(wanted.batch_size, self.n))

    def points_dealt(self, deal: Deal | None) -> AnyPoints:
        """Points of the rows to train on and of closing epochs, dealt to the ranks in this way."""
        return training_points(self.data, self.chosen.inputs, self.y, self.limit, deal, self.n_closing)

    def problem(
        self,
        machine: KernelMachine,
        preconditioner: LevelledKernel,
        plan: Plan,
        busy_ranks: int,
        points: AnyPoints | StreamedPoints | None = None,
    ) -> Problem:
        """What is to be trained, with what was decided about it in the plan."""
        chosen, size = self.chosen, self.ranks.size
        notes = [*plan.notes, *([] if chosen.note is None else [chosen.note])]
        if busy_ranks < size:
            notes.append(
                f"{size - busy_ranks} of {size} ranks are idle: the data is too small for so many"
            )
        plan = replace(
            plan,
            kernel=str(chosen.kernel),
            preparation=chosen.inputs.describe(),
            notes=tuple(notes),
        )
        found = (chosen.kernel, chosen.ridge, machine, preconditioner, plan, self.y)
        return Problem(*found, chosen.selection, chosen.left_out, points)


def prepare_rows(
    data: Data,
    settings: Settings,
    resource: Resource,
    on_stage: Callable[[str], None],
    group: Group | None,
) -> tuple[Prepared, AnyPoints]:
    """Choose how the kernel sees the rows, and prepare them.

    Until there is a plan, points that are dealt to the ranks are dealt in panels of any kind.
    """
    ranks = group or Group()
    like = torch.zeros((), dtype=settings.dtype, device=settings.device)
    limit = data_limit(settings.device, resource.usable_each)
    in_bytes = data.stream is None or data.X.dtype in (np.uint8, torch.uint8)
    bytes_pay = resource.integer_gain > 1 and in_bytes and data.centers is None
    solves = _may_solve(data, settings, resource)
    chosen = choose_for_all(data, settings, resource, bytes_pay, solves, on_stage, ranks)
    if settings.setting.inputs is not None:
        _check_known(settings.setting.inputs, data)
    on_stage("preparing the data")
    solves = solves and chosen.inputs.grid is None
    if solves:
        like = like.to(widest(settings.device))
        chosen = replace(chosen, ridge=max(chosen.ridge, JITTER))

    def points_of(chosen: Chosen) -> tuple[AnyPoints, int]:
        n_closing = _n_closing(data, settings, chosen)
        deal = None if solves else dealing_anyhow(len(data.rows), ranks, settings.device, n_closing)
        return training_points(data, chosen.inputs, like, limit, deal, n_closing), n_closing

    points, n_closing = points_of(chosen)
    if chosen.inputs.grid is not None and not points.is_bytes:  # only the first rows looked 8-bit
        chosen = choose_for_all(data, settings, resource, False, solves, on_stage, ranks)
        points, n_closing = points_of(chosen)
    check_range(points)
    grid = chosen.inputs.grid
    kernel = chosen.kernel if grid is None else in_units(chosen.kernel, grid.scale)
    kernel.check(like.dtype)
    weight, ridge = data.training_weight, chosen.ridge
    if weight is not None:
        ridge /= float(weight.max())
    y = data.targets(data.units, like)
    seen = (data, settings, group, resource, chosen, kernel, y, ridge)
    return Prepared(*seen, solves, limit, n_closing), points


def _may_solve(data: Data, settings: Settings, resource: Resource) -> bool:
    """Whether the equations of all rows are solved at once: few of them, a ridge that says how closely
    to fit them, nothing held out, and neither centres nor anything of descent that the user fixed."""
    setting, p = settings.setting, settings.n_centers
    return (
        (setting.ridge is None or setting.searched)
        and settings.requests == Requests()
        and data.n_held_out == 0
        and data.centers is None
        and not (isinstance(p, int) and p < len(data.rows))
        and data.stream is None
        and widest(settings.device) == torch.float64
        and (isinstance(setting.kernel, str) or not isinstance(as_kernel(setting.kernel, 1.0), Custom))
        and is_small(len(data.rows), data.Y.shape[1], resource)
    )


def _n_closing(data: Data, settings: Settings, chosen: Chosen) -> int:
    """How many rows that are held out may be trained on in the end; see training/closing.py."""
    if data.closing_rows is None or chosen.ridge <= 0 or settings.limits.max_iter == 1:
        return 0
    # Of rows outside the space of the others, the kernel would see only their projections.
    inputs = chosen.inputs
    spans_all = inputs.projection is None or inputs.projection.shape[0] == inputs.projection.shape[1]
    return len(data.closing_rows) if spans_all or not inputs.lossless else 0


def _check_known(inputs: Inputs, data: Data) -> None:
    """Inputs of an earlier fit must suit the rows: what they leave out must be nothing."""
    for _, chunk in chunks(data.X, data.rows):
        z, beyond = inputs.floats(chunk)
        if bool((beyond > UNSEEN_SHARE * (1 + z.square().sum(1))).any()):
            raise ValueError(
                "With `warm_start`, features must have values like those of the last fit. Got a "
                "category that it did not see, or another value in a column that was constant: fit a "
                "new model."
            )


def check_range(points: AnyPoints) -> None:
    """Raise where squared distances would overflow."""
    if not points.bound + 4 * points.absolute_bound < torch.finfo(points.dtype).max:
        precision = str(points.dtype).removeprefix("torch.")
        raise ValueError(
            f"Squared lengths of rows must be finite in {precision}. Got an overflow: the features are "
            'too large, so rescale them, or use precision="float64".'
        )
