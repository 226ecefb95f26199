"""What was decided about each column of the training table."""

from __future__ import annotations

from collections.abc import Sequence

from mercer.report.markup import Markup, any_long, element, join, label, table
from mercer.tables.columns import Decision

# Columns that are shown at once; more are behind a button, up to a number that keeps the page small.
MOST_COLUMNS_OPEN = 20
MOST_COLUMNS_ON_PAGE = 500
LONGEST_COLUMN = 40


def columns(decisions: Sequence[Decision]) -> Markup:
    """A table of the columns, what each is used as, and why."""
    if not decisions:
        return Markup("")
    shown = decisions[:MOST_COLUMNS_ON_PAGE]
    rows = ([label(one.name, LONGEST_COLUMN), one.role, one.why] for one in shown)
    caption = ""
    if len(decisions) > len(shown):
        caption = f"The first {len(shown):,} of {len(decisions):,} columns."
    found = table(
        ["Column", "Used as", "Why, and how"],
        rows,
        caption=caption,
        stacked=any_long(*(one.name for one in shown)),
    )
    if len(decisions) <= MOST_COLUMNS_OPEN:
        return found
    summary = element("summary", f"All {len(decisions):,} columns")
    return join(element("details", summary, found))
