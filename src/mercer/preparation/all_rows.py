"""Every row is a centre: the plan for descent, or for equations that are solved at once."""

from __future__ import annotations

from collections.abc import Callable

from mercer.data.dealt_points import AnyPoints
from mercer.data.points import Points
from mercer.method.preconditioner import LevelledKernel
from mercer.planning.choose import choose
from mercer.planning.direct import direct_plan
from mercer.planning.epochs import Goal, expected_epochs
from mercer.planning.plan import Plan
from mercer.planning.rehearsal import with_predicted_seconds
from mercer.preparation.rows import Prepared
from mercer.preparation.settings import all_cores
from mercer.training.problem import rows_each


def plan_all_rows(
    prepared: Prepared,
    points: AnyPoints,
    exchange: float,
    points_exchange: float,
    on_stage: Callable[[str], None],
) -> tuple[Plan, LevelledKernel]:
    """The plan for these points, with predicted seconds if the rates of the device are known.

    `exchange` and `points_exchange` are the seconds in which ranks add up the sums of a panel, and send
    its points.
    """
    data, resource, y = prepared.data, prepared.resource, prepared.y
    if prepared.solves:
        assert isinstance(points, Points)
        return direct_plan(prepared.kernel, points, prepared.n_outputs, resource, prepared.ridge)
    limits = prepared.settings.limits
    patience = limits.n_iter_no_change if data.n_held_out > 0 else None
    goal = Goal(y, limits.interpolation_tol, limits.max_iter, patience)
    with all_cores(prepared.ranks):
        plan, preconditioner = choose(
            prepared.kernel,
            points,
            prepared.n_outputs,
            resource,
            prepared.ridge,
            prepared.requests,
            data.n_held_out,
            data_on_disk=rows_each(points) > prepared.limit,
            keeps=limits.max_iter > 1,
            coded=prepared.group is None,
            n_closing=prepared.n_closing,
            goal=goal,
        )
    if resource.rates is not None:
        on_stage("timing a few panels")
        plan = with_predicted_seconds(
            plan,
            resource.rates,
            prepared.kernel,
            points,
            preconditioner,
            y,
            data.n_held_out,
            expected_epochs(plan, preconditioner, goal),
            exchange,
            points_exchange,
        )
    return plan, preconditioner
