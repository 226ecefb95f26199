"""Inputs, kernel, bandwidth and ridge, chosen by one rank for all."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from mercer.kernels import Gaussian, as_kernel
from mercer.planning.centres import FEWEST_TIMED, auto_centres
from mercer.planning.resource import Resource
from mercer.preparation.settings import Settings, all_cores
from mercer.processes.group import Group
from mercer.processes.seats import sharing
from mercer.selection.setting import Chosen, choose_setting
from mercer.training.problem import Data

# Stands for a kernel that the user gave, until each rank has put its own in the place.
ANY = Gaussian(bandwidth=1.0)


# Temporary centres are at most about as many as the lasting ones.
COLUMNS_PER_CENTRE = 2


def choose_for_all(
    data: Data,
    settings: Settings,
    resource: Resource,
    bytes_pay: bool,
    solves: bool,
    on_stage: Callable[[str], None],
    group: Group,
) -> Chosen:
    """What the user left open is chosen on rank 0, meanwhile on all cores of its host."""

    n_terms = _most_terms(data, settings, resource, group.size)

    def chosen_here() -> Chosen:
        with all_cores(group):
            return choose_setting(
                data.X,
                data.comparable_Y,
                data.rows,
                settings.setting,
                dtype=settings.dtype,
                usable=resource.usable_each * sharing(group.seats, group.rank),  # the others wait
                bytes_pay=bytes_pay,
                solves=solves,
                n_terms=n_terms,
                at_scale=_at_scale(data, n_terms),
                strata=data.strata,
                sample_weight=data.sample_weight,
                on_tried=lambda count: on_stage(
                    f"choosing kernel, bandwidth and ridge, {count} settings tried"
                ),
            )

    own = None if isinstance(settings.setting.kernel, str) else as_kernel(settings.setting.kernel, 1.0)
    chosen = group.decided(chosen_here if own is None else lambda: replace(chosen_here(), kernel=ANY))
    if own is not None:  # every rank has it; a function of the user's own could not be sent
        chosen = replace(chosen, kernel=own)
    if chosen.left_out is None or not data.own_scales:
        return chosen
    decisions = chosen.left_out.decisions * data.units.scale.numpy()  # in the units of the targets
    return replace(chosen, left_out=replace(chosen.left_out, decisions=decisions))


def _most_terms(data: Data, settings: Settings, resource: Resource, ranks: int) -> int:
    """Columns that a prediction sums over in training, at most: rounding error grows with them.

    How many centres "auto" will take depends on the seconds of a kernel value.  The product alone is the
    least that any kernel takes, and gives the most centres; a power of two does not depend on noise.
    """
    n, p = len(data.rows), settings.n_centers
    if data.centers is not None:
        p = len(data.centers)
    if p == "auto":
        least = None
        if resource.rates is not None:
            product = data.X.shape[1] * resource.rates.feature / max(1.0, resource.integer_gain)
            least = 2.0 ** math.floor(math.log2(product / ranks))
        p = auto_centres(n, least, resource) if n >= FEWEST_TIMED else None
    return n if p is None else min(n, COLUMNS_PER_CENTRE * p)


def _at_scale(data: Data, terms: int) -> bool:
    """Whether the ridge is not all that keeps the model from following noise."""
    return data.n_held_out > 0 or data.stream is not None or terms < len(data.rows)
