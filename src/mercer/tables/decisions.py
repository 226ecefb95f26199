"""What was decided about each column of a table, in a few words."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mercer.tables.columns import Column, Columns, Decision
from mercer.tables.kinds import NAMES
from mercer.tables.wording import quoted

ROLE_LEFT_OUT = "left out"
AS_REQUESTED = "as requested"


def decisions(
    names: Sequence[str],
    columns: Columns,
    reason: str,
    dropped: Mapping[str, Sequence[str]],
    requested: Collection[str],
    weight: str | None,
) -> tuple[Decision, ...]:
    """One decision for each column of the table, in their order.

    `reason` is that of the task, `dropped` has the columns of no use by what is wrong with them, and
    `requested` are those that an option declares.
    """
    why_dropped = {name: which for which, some in dropped.items() for name in some}
    used = {column.name: column for column in columns.columns}
    found = []
    for name in names:
        if name == columns.target:
            why = reason.removeprefix(f"{quoted(name)} has ")
            how = "" if columns.target_notation is None else columns.target_notation.describe()
            found.append(Decision(name, "target", f"{why}; {how}" if how else why))
        elif name == weight:
            found.append(Decision(name, "weight", AS_REQUESTED))
        elif name in used:
            found.append(_of(used[name], name in requested))
        else:
            why = why_dropped.get(name, AS_REQUESTED)
            found.append(Decision(name, ROLE_LEFT_OUT, why.removeprefix("with ").removeprefix("of ")))
    return tuple(found)


def _of(column: Column, requested: bool) -> Decision:
    role = "category" if column.coded or column.kind == "text" else NAMES[column.kind].removesuffix("s")
    words = [AS_REQUESTED] if requested else []
    if column.notation is not None and column.notation.describe():
        words.append(column.notation.describe())
    if column.kind == "text":
        words.append(f"{len(column.levels):,} values")
        words += ["rare ones merged"] if column.has_rare else []
        words += ["missing is one more"] if column.missing else []
    elif column.is_indicated:
        words.append("missing values become the mean, with an indicator")
    if column.cycles:
        words.append(f"cycles of the {', '.join(column.cycles)}")
    return Decision(column.name, role, "; ".join(words))
