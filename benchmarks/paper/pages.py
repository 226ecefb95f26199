"""Pages made from the results: "The paper, point by point", and one page per part.

    docs/paper.md              all claims in a table: claim, published, ours, verdict, command
    docs/paper/NAME.md         text, verdicts, tables and plots of a part; machine, size, command
    docs/paper/img/NAME*.png   plots of a part, made by its `plot`

Do not edit the pages by hand.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.paper.results import VERDICTS, Cell, Result, Table

if TYPE_CHECKING:
    from benchmarks.paper.__main__ import Part

SIZES = {
    "smoke": "smoke size (a test run; the numbers have no meaning)",
    "quick": "quick size",
    "full": "full size",
}
HEAD = """# The paper, point by point

Every claim of S. Ma and M. Belkin, "Kernel machines that adapt to GPUs for effective large batch
training" (SysML 2019, arXiv:1806.06144), next to what was measured with Mercer. Published values are
from the paper, on its hardware. Ours were measured on the machine named below, and code decides every
verdict from those numbers. "Not quoted" marks a published value that was not available. The numbers of
tables and sections were not checked against the printed paper.

`make paper` makes this page and those it links to (about ten minutes on two cores);
`make paper SIZE=--full` makes them at the paper's sizes.
"""


def write_pages(
    names: Sequence[str], part: Callable[[str], Part], measured: Path, docs: Path
) -> list[str]:
    """Make all pages from the results in `measured`; returns the parts that failed."""
    results, failed = [], []
    for name in names:
        path = measured / f"{name}.json"
        if not path.is_file():
            continue
        try:
            result = Result.from_json(path.read_text(encoding="utf-8"))
            images = part(name).plot(result, _made(docs / "paper" / "img"))
        except Exception:
            traceback.print_exc()
            failed.append(name)
            continue
        page = _made(docs / "paper") / f"{name}.md"
        page.write_text(part_page(result, images), encoding="utf-8")
        results.append(result)
    if results:
        missing = [name for name in names if name not in {result.name for result in results}]
        (docs / "paper.md").write_text(front_page(results, missing), encoding="utf-8")
    return failed


def front_page(results: Sequence[Result], missing: Sequence[str]) -> str:
    """The table of all claims."""
    claims = [(result, claim) for result in results for claim in result.claims]
    hold, partly, not_ = (sum(_kind(claim.verdict) == i for _, claim in claims) for i in range(3))
    lines = [HEAD, f"Of {len(claims)} claims {hold} hold, {partly} hold partly, {not_} do not hold.", ""]
    for text in sorted({f"{SIZES[result.size]}, {result.machine}" for result in results}):
        parts = [r.name for r in results if text == f"{SIZES[r.size]}, {r.machine}"]
        lines.append(f"- {', '.join(parts)}: {text}")
    if missing:
        lines.append(f"- not measured yet: {', '.join(missing)}")
    rows: list[tuple[Cell, ...]] = [
        (
            f"[{result.title}](paper/{result.name}.md)",
            claim.claim,
            f"{claim.where}: {claim.published}",
            claim.ours,
            _marked(claim.verdict),
            f"`{result.command}`",
        )
        for result, claim in claims
    ]
    columns = ("part", "claim", "published", "ours", "verdict", "command")
    return "\n".join([*lines, "", *_rows(columns, rows), ""])


def part_page(result: Result, images: Sequence[Path]) -> str:
    """One part: text, verdicts, plots, tables, and the command that measures it."""
    lines = [f"# {result.title}", "", result.text, ""]
    for claim in result.claims:
        lines += [
            f"**{claim.claim}** ({claim.where})",
            "",
            f"- published: {claim.published}",
            f"- ours: {claim.ours}",
            f"- verdict: {_marked(claim.verdict)}",
            "",
        ]
    lines += [f"![{result.title}](img/{image.name})\n" for image in images]
    for table in result.tables:
        lines += _table(table)
    lines += [
        f"Measured at {SIZES[result.size]} in {result.seconds:,.0f} s on {result.machine}, by",
        "",
        "```sh",
        result.command,
        "```",
        "",
        "[All claims](../paper.md)",
        "",
    ]
    return "\n".join(lines)


def _table(table: Table) -> list[str]:
    return [f"## {table.title}", "", *_rows(table.columns, table.rows), ""]


def _rows(columns: Sequence[str], rows: Sequence[tuple[Cell, ...]]) -> list[str]:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *([_cell(cell) for cell in row] for row in rows)]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _cell(value: Cell) -> str:
    """Three significant figures, and commas between thousands."""
    if value is None:
        return "–"
    if isinstance(value, bool | str):
        return str(value).replace("|", "\\|").replace("\n", " ")
    if isinstance(value, int) or (value == round(value) and 1000 <= abs(value) < 1e15):
        return f"{round(value):,}"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.3g}"


def _kind(verdict: str) -> int:
    """Index into `VERDICTS`."""
    return next(i for i in (2, 1, 0) if verdict.startswith(VERDICTS[i]))


def _marked(verdict: str) -> str:
    start = VERDICTS[_kind(verdict)].rstrip(": ")
    return f"**{start}**{verdict.removeprefix(start)}"


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
