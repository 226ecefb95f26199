"""The rows that were predicted worst, with their values in the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.table import Table

from mercer.cli.choices import Model
from mercer.cli.labels import short_labels
from mercer.cli.printing import screen_width, text
from mercer.cli.sources import Source
from mercer.estimators.features import features_of
from mercer.report import Evaluation, RowValues, worst_rows
from mercer.report.numbers import number, probability
from mercer.tables.columns import Columns
from mercer.tables.kinds import as_written
from mercer.tables.plain_columns import PlainColumns

# Rows on a screen and on the page, and the columns whose values are shown.
WORST_ON_SCREEN = 5
WORST_LISTED = 15
COLUMNS_OF_WORST = 6
# With more columns than this, values are shown only if it is known which columns count.
MANY_COLUMNS = 100
# Columns of a screen for a label, and characters of the values of a row.
WORST_LABEL_WIDTH = 24
VALUES_WIDTH = 120
# With fewer columns, two labels leave too little room for values.
WIDE_SCREEN = 110


def with_values(
    evaluation: Evaluation, model: Model, source: Source, columns: Columns | PlainColumns
) -> Evaluation:
    """The evaluation with the values that its worst rows have in the columns that count most."""
    names = _columns_that_count(model, columns)
    wanted = {int(row) for row in evaluation.rows[worst_rows(evaluation)[:WORST_LISTED]]}
    if not names or not wanted:
        return evaluation
    found: dict[int, tuple[Any, ...]] = {}
    written = columns.notations if isinstance(columns, Columns) else {}
    notations = {name: how for name, how in written.items() if not how.date}  # dates are shown as given
    first = 0
    for chunk in source.table.chunks(names):
        frame = as_written(chunk, notations)
        here = [row for row in wanted if first < row <= first + len(frame)]
        for row in here:
            found[row] = tuple(frame[name][row - 1 - first] for name in names)
        first += len(frame)
        if len(found) == len(wanted):
            break
    return replace(evaluation, values=RowValues(tuple(names), found))


def _columns_that_count(model: Model, columns: Columns | PlainColumns) -> list[str]:
    """The most important columns, or the first ones, in the order of the table."""
    names = list(columns.names)
    if isinstance(columns, Columns):
        features = features_of(model, columns.feature_names, columns.categories)
        owners: Sequence[str] = columns.owners
    else:
        features, owners = features_of(model), names
    if any(feature.importance is None for feature in features):
        return names[:COLUMNS_OF_WORST] if len(names) <= MANY_COLUMNS else []
    shares = dict.fromkeys(names, 0.0)
    for owner, feature in zip(owners, features, strict=True):
        shares[owner] += feature.importance or 0.0
    chosen = sorted(names, key=lambda name: -shares[name])[:COLUMNS_OF_WORST]
    return [name for name in names if name in chosen]


def worst_lines(evaluation: Evaluation) -> list[Any]:
    """A table of the worst rows for a screen; nothing if all rows are right.

    Beside labels on a narrow screen there is no room for values, which are then below them.
    """
    worst = worst_rows(evaluation)[:WORST_ON_SCREEN]
    if not len(worst):
        return []
    classes = evaluation.probabilities is not None or evaluation.y.dtype.kind not in "fiu"
    below = classes and screen_width() < WIDE_SCREEN
    lines: list[Any] = []
    names = short_labels([*evaluation.y, *evaluation.predicted] if classes else [])
    table = _table(classes, values=not below)
    for i in worst:
        sure = evaluation.confidence
        rate = [] if not classes else ["" if sure is None else probability(float(sure[i]))]
        pair = [evaluation.y[i], evaluation.predicted[i]]
        shown = (
            [names.at(v, WORST_LABEL_WIDTH) for v in pair]
            if classes
            else [number(float(v), 4) for v in pair]
        )
        values = text(evaluation.values_of(i, VALUES_WIDTH), style="dim")
        cells = (text(str(evaluation.rows[i])), *map(text, (*shown, *rate)))
        table.add_row(*cells, *([] if below else [values]))
        if below and len(values):
            lines += [text(f"row {evaluation.rows[i]}: ", style="dim") + values]
    title = "Worst mistakes" if classes else "Worst predictions"
    return ["", text(title, style="bold"), table, *([""] if lines else []), *lines]


def _table(classes: bool, values: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("row", justify="right", no_wrap=True)
    for name in ("true", "predicted"):
        table.add_column(name, justify="left" if classes else "right", no_wrap=True)
    if classes:
        table.add_column("probability", justify="right", no_wrap=True)
    if values:
        table.add_column("values", overflow="fold")
    return table


def worst_data(evaluation: Evaluation) -> list[dict[str, Any]]:
    """The same for programs."""
    return [
        {
            "row": int(evaluation.rows[i]),
            "true": evaluation.y[i],
            "predicted": evaluation.predicted[i],
            "values": evaluation.value_pairs(i),
        }
        for i in worst_rows(evaluation)[:WORST_LISTED]
    ]
