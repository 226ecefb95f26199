"""The examples on the pages run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mercer

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def examples(page: Path) -> list[str]:
    """The python blocks of a page, each after empty lines, so that errors show the page's lines."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return ["\n" * text.count("\n", 0, match.start(1)) + match[1] for match in found]


PAGES_WITH_EXAMPLES = [page for page in PAGES if examples(page)]


@pytest.mark.parametrize("page", PAGES_WITH_EXAMPLES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    plt = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    try:
        for example in examples(page):
            exec(compile(example, str(page), "exec"), namespace)
    finally:
        plt.close("all")


def test_every_public_name_is_shown_or_described():
    shown = "\n".join(example for page in PAGES for example in examples(page))
    described = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", shown)) | set(re.findall(r"^::: mercer\.(\w+)$", described, re.M))
    assert not set(mercer.__all__) - words
