"""From rows to a problem: prepare them, decide how many are centres, and make the plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mercer.data.dealt_points import AnyPoints, DealtPoints
from mercer.kernels import Custom
from mercer.model.machine import KernelMachine
from mercer.operators.tiled import panel_rows
from mercer.planning.together import Together, exchange_seconds
from mercer.preparation.all_rows import plan_all_rows
from mercer.preparation.centres import n_centres, problem_with_centres, timed_value
from mercer.preparation.rows import Prepared, prepare_rows
from mercer.preparation.settings import Settings, measured_resource
from mercer.processes.group import Group
from mercer.training.assemble import dealing
from mercer.training.problem import Data, Problem


def prepare(
    data: Data,
    settings: Settings,
    on_stage: Callable[[str], None] = lambda text: None,
    group: Group | None = None,
) -> Problem:
    """Prepare the data, choose what is to be chosen, and make the plan.

    In a group, rank 0 chooses for all, meanwhile on all cores of its host.
    """
    ranks = group or Group()
    resource = measured_resource(settings, ranks)
    prepared, points = prepare_rows(data, settings, resource, on_stage, group)
    on_stage("estimating the spectrum")
    to_train = points.first(prepared.n)
    exchange, points_exchange = _exchanges(prepared, to_train)
    together = Together.of(group, exchange / prepared.n_outputs, points_exchange)
    value = timed_value(prepared, to_train)
    p = n_centres(prepared, value, together)
    if p is not None:
        return problem_with_centres(prepared, points, p, value, together)

    plan, preconditioner = ranks.decided(
        lambda: plan_all_rows(prepared, to_train, exchange, points_exchange or 0.0, on_stage)
    )
    deal = dealing(
        plan.n, plan.subsample_size, plan.batch_size, ranks, settings.device, prepared.n_closing
    )
    if isinstance(points, DealtPoints):
        del to_train, points  # before others take their place
        points = prepared.points_dealt(deal)
    kernel = prepared.kernel
    fault = kernel.fault(points) if isinstance(kernel, Custom) else None
    if fault is not None:
        plan = replace(plan, notes=(*plan.notes, fault))
    alpha = prepared.y.new_zeros(len(points), prepared.n_outputs)
    machine = KernelMachine(kernel, prepared.chosen.inputs, points, alpha, data.units)
    busy = 1 if plan.direct else deal.busy_ranks
    return prepared.problem(machine, preconditioner, plan, busy)


def _exchanges(prepared: Prepared, points: AnyPoints) -> tuple[float, float | None]:
    """Seconds in which ranks add up the sums of a panel and send its points, if these are dealt."""
    panel = slice(0, panel_rows(prepared.y.device))
    sums = exchange_seconds(prepared.ranks, prepared.y[panel].double())
    if not isinstance(points, DealtPoints):
        return sums, None
    return sums, exchange_seconds(prepared.ranks, points[panel].rows)
