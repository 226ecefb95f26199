"""Bytes that ranks send where there are fewer centres than rows, from the numbers of a plan.

For each row, the sums of f and Z; for each projection, what panels added to the values on the centres
and to the gradient; for each pass over the centres, the sums of f.  At the beginning the centres get
their Z, and at the end of an epoch some rows are watched.  Equations that are solved at once are sent
once, and again for rows that were held out.  These are not counted otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mercer.method.conjugate import n_watched
from mercer.method.normal_equations import GRAM_BLOCK
from mercer.method.projection import is_factorised
from mercer.method.schedule import Schedule, make_schedule
from mercer.method.shared_equations import N_UNITS
from mercer.operators.summation import pieces
from mercer.operators.to_centres import rows_with_centres
from mercer.planning.memory import VALUE_BYTES

if TYPE_CHECKING:
    from mercer.planning.plan import Plan


def sent_with_centres(plan: Plan) -> tuple[float, float]:
    """In the first epoch and in each later one, with one pass for each projection: there may be more."""
    p, l, q = plan.n_weighted, plan.n_outputs, plan.preconditioner_rank
    if plan.direct:
        widths = [c.stop - c.start for c in pieces(0, p, GRAM_BLOCK)]
        gram = sum(a * b for i, a in enumerate(widths) for b in widths[: i + 1])
        times = 2 if plan.n_closing else 1
        return float(times * N_UNITS * VALUE_BYTES * (gram + p * l)), 0.0
    device = torch.device(plan.device)
    rows = rows_with_centres(p, device)
    schedule = make_schedule(plan.n, 0, plan.batch_size, rows, triangular=False)
    projections = n_projections(schedule, plan.n_temporary)
    watched = n_watched(plan.n)
    epoch = plan.n * (l + q) * plan.sum_bytes + projections * 2 * p * l * VALUE_BYTES
    epoch += watched * l * plan.sum_bytes + (plan.n * plan.row_bytes if plan.dealt else 0.0)
    Z = float(p * q * (4 if plan.precision == "float32" else 8))
    sums = p * l * plan.sum_bytes
    first = sums + Z + (watched * plan.row_bytes if plan.dealt else 0.0)
    if is_factorised(p, device):
        return first + epoch, epoch
    of_pass = sums + (0.0 if plan.kept_for_training >= Z else Z)
    # Later epochs have one more pass, for the weights of the gradient.
    return first + epoch + projections * of_pass, epoch + (projections + 1) * of_pass


def n_projections(schedule: Schedule, n_temporary: int) -> int:
    """Projections of an epoch: one where the next panel may not fit, and one at its end."""
    found, held = 1, 0
    most = max(schedule.longest, n_temporary)
    for panel in schedule.panels[:-1]:
        held += len(panel)
        if held + schedule.longest > most:
            found, held = found + 1, 0
    return found
