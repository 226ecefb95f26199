"""How a plan reads: as a table in the terminal and in a notebook."""

from __future__ import annotations

import html
import textwrap
from typing import TYPE_CHECKING

from mercer.digits import in_digits
from mercer.planning.memory import in_words

if TYPE_CHECKING:
    from mercer.planning.plan import Plan

# Seconds from which on a plan advises what would be faster.
LONG_SECONDS = 600
# Characters of a line as printed, and at least of its last column, which is wrapped.
LINE_WIDTH, LEAST_MEANING = 96, 40


def advice(plan: Plan) -> str:
    """What limits the batch, and what would change it."""
    spectrum, device = _short(plan.critical_batch_size), _short(plan.device_batch_size)
    reasons = {
        "capacity": f"the device is saturated at {device}; a larger batch would not run faster",
        "memory": f"no more than {device} fit; the spectrum allows {spectrum} with more memory",
        "spectrum": (
            f"the device could use {device} but the spectrum only {spectrum}; a larger s would help"
        ),
        "data": "all points are in the subsample and could be in one batch",
    }
    return reasons.get(plan.bound, "the batch was given")


def rows(plan: Plan) -> list[tuple[str, str, str]]:
    """(name, value, meaning) for each line of the table."""
    paper = plan.paper_rule
    on_disk = "; memory-mapped, as memory is short" if plan.data_on_disk else ""
    needs = f"memory to be used; this run needs {in_words(plan.peak_memory)}"
    own, fresh = plan.paper_rule_own_critical, paper.critical_batch_size
    plain = f"{plan.critical_batch_size_plain:.1f}"
    levelled = "eigenvalues levelled" + (f"; {plan.rank_reason}" if plan.rank_reason else "")
    ridge = "0 interpolates" if plan.ridge == 0 else "noise level per point"
    shown = [
        ("data", f"{plan.n:,} × {plan.d:,}", f"points × features; outputs: {plan.n_outputs:,}"),
        ("features", "", plan.preparation + on_disk),
        ("kernel", plan.kernel, f"{plan.precision} on {plan.device} ({plan.device_name})"),
    ]
    last = [("ridge", f"{plan.ridge:.3g}", ridge)]
    notes = [("note", "", note) for note in plan.notes]
    if plan.direct:
        method = "few rows, so all equations are solved at once: no batches, no epochs"
        if plan.n_centers is not None:
            method = "few centres, so their equations are solved at once, in one pass over the rows"
            shown.insert(1, ("centres", f"{plan.n_centers:,}", "of the model"))
        if plan.n_closing:
            meaning = "held out to judge the solution, and trained on in the end"
            shown.insert(1, ("held out", f"{plan.n_closing:,}", meaning))
        shown += [
            ("S_G", in_words(plan.memory), needs),
            ("m*(k)", plain, "largest useful batch of gradient descent, for comparison"),
            ("method", "direct", method),
        ]
        return shown + last + _ranks(plan) + _times(plan) + notes
    kept = plan.kept_memory + plan.kept_rows_memory
    shown += [
        ("C_G", _short(plan.capacity), "operations in flight that saturate the device"),
        ("S_G", in_words(plan.memory), needs),
        ("kept", in_words(kept), f"{_kept(plan)}; inner products {plan.products}"),
        ("m_C", _short(plan.capacity_batch_size), "batch that keeps the device busy"),
        ("m_S", _short(plan.memory_batch_size), "batch whose kernel block would fit in memory"),
        ("m_G", _short(plan.device_batch_size), "batch the device can use"),
        ("m*(k)", plain, "largest useful batch without levelling"),
        ("s", f"{plan.subsample_size:,}", "subsample for the spectrum"),
        (
            "q (paper's rule)",
            f"{paper.q:,}",
            f"m* {own:,.0f} on the subsample itself, {fresh:,.0f} on fresh points",
        ),
        ("q", f"{plan.preconditioner_rank:,}", levelled),
        ("beta(K_G)", f"{plan.beta:.3g}", f"mean of k_G(x, x); largest seen {plan.beta_max:.3g}"),
        ("m*(k_G)", _short(plan.critical_batch_size), "largest useful batch after levelling"),
        ("m", f"{plan.batch_size:,}", f"batch, limited by {plan.bound}: {advice(plan)}"),
        ("eta", in_digits(plan.step_size), "step size"),
        *last,
        ("acceleration", f"{plan.acceleration:,.0f} ×", "predicted over plain SGD"),
    ]
    if plan.n_closing:
        meaning = "held out to say when to stop; trained on in the end if that costs little and helps"
        shown.insert(1, ("held out", f"{plan.n_closing:,}", meaning))
    if plan.n_centers is not None:
        several = f"of the model, and at most {plan.n_temporary:,} temporary ones between projections"
        shown.insert(1, ("centres", f"{plan.n_centers:,}", several))
    return shown + _ranks(plan) + _times(plan) + notes


def _ranks(plan: Plan) -> list[tuple[str, str, str]]:
    """Processes that train together, if there are several, and what they send."""
    if plan.ranks == 1 or (plan.direct and plan.n_centers is None):
        return []
    first, later = (in_words(size) for size in plan.sent_bytes)
    meaning = f"processes; each sends {first} in the first epoch, {later} in each later one"
    if plan.direct:
        meaning = f"processes; each sends {first}"
    return [("ranks", f"{plan.ranks:,}", meaning)]


def _times(plan: Plan) -> list[tuple[str, str, str]]:
    """What was predicted."""
    shown = []
    if not plan.direct and plan.first_epoch_seconds is not None and plan.later_epoch_seconds is not None:
        value = f"{time_in_words(plan.first_epoch_seconds)}, {time_in_words(plan.later_epoch_seconds)}"
        shown.append(("time", value, "predicted for the first epoch and for each later one"))
    if plan.expected_seconds is not None and plan.expected_epochs is not None:
        count = "1 epoch" if plan.expected_epochs == 1 else f"{plan.expected_epochs:,} epochs"
        meaning = f"predicted until training stops, after about {count}"
        if plan.n_closing:
            meaning += "; as many at most may follow on all rows"
        if plan.direct:
            meaning = "predicted"
        if plan.expected_seconds > LONG_SECONDS:
            meaning += f"; {_faster(plan)}"
        shown.append(("time in all", time_in_words(plan.expected_seconds), meaning))
    if plan.all_centers_seconds is not None:
        meaning = "predicted with every row as a centre (n_centers=None)"
        shown.append(("all centres", time_in_words(plan.all_centers_seconds), meaning))
    return shown


def table(plan: Plan) -> str:
    """The plan as aligned text."""
    lines = rows(plan)
    names = max(len(name) for name, _, _ in lines)
    values = max(len(value) for _, value, _ in lines)
    room = max(LINE_WIDTH - names - values - 4, LEAST_MEANING)
    printed = []
    for name, value, meaning in lines:
        first, *others = textwrap.wrap(meaning, room) or [""]
        printed.append(f"{name:<{names}}  {value:>{values}}  {first}".rstrip())
        printed += [" " * (names + values + 4) + other for other in others]
    return "\n".join(printed)


def html_table(plan: Plan) -> str:
    """The plan as an HTML table."""
    cells = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{html.escape(c)}</td>" for c in row) + "</tr>"
        for row in rows(plan)
    )
    return f"<table><caption>Mercer plan</caption>{cells}</table>"


def _faster(plan: Plan) -> str:
    """What would take less time, where a run takes long."""
    ways = "fewer centres (n_centers), a sample of the rows or more ranks"
    if plan.kept_memory < plan.n**2 / 2 and plan.expected_epochs != 1:
        return f"{ways} would be faster, and more memory for later epochs"
    return f"{ways} would be faster"


def _kept(plan: Plan) -> str:
    if plan.kept_rows_memory:
        return f"kernel values kept, {plan.kept_rows_share:.0%} of those of rows with the centres"
    if plan.kept_as is None or not plan.kept_memory:
        return "kernel values kept"
    return f"kernel values kept in 16 bits, each within {plan.kept_as.error:.1e}"


def time_in_words(value: float) -> str:
    """Seconds as people read them.

    >>> time_in_words(7.31), time_in_words(7_310)
    ('7.3 s', '2.0 h')
    """
    if value < 100:
        return f"{value:.2g} s"
    return f"{value / 60:.0f} min" if value < 6_000 else f"{value / 3_600:.1f} h"


def _short(value: float) -> str:
    if value == float("inf"):
        return "no limit"
    return f"{value:.2g}" if value >= 1e7 else f"{value:,.0f}"
