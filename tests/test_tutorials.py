"""Tutorials print what they show, and pictures are those of the code before them."""

from __future__ import annotations

import re

import pytest
from test_docs import ROOT, SHOW_OUTPUT, TUTORIALS

from docs import figures, outputs


@pytest.mark.parametrize("page", SHOW_OUTPUT, ids=lambda page: page.stem)
def test_pages_show_what_their_examples_print(page, tmp_path, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    plt = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    try:
        found = outputs.printed(page)
    finally:
        plt.close("all")
    for shown, got in found:
        assert shown is not None or page not in TUTORIALS or not got, got
        if shown is not None:
            assert outputs.agree(shown, got), f"The page shows\n{shown}\nand prints\n{got}"


@pytest.mark.parametrize(
    ("shown", "got", "same"),
    [
        ("error 0.50", "error 0.52", True),
        ("error 0.50", "error 0.56", False),
        ("2 of 143 rows", "4 of 143 rows", True),
        ("2 of 143 rows", "7 of 143 rows", False),
        ("error 0.50", "loss 0.50", False),
        ("[[88  2]\n [ 2 51]]", "[[87  3]\n [ 2 51]]", True),
        ("1,234 rows", "none", False),
    ],
)
def test_outputs_agree_if_words_are_the_same_and_numbers_near(shown, got, same):
    assert outputs.agree(shown, got) is same


def test_every_picture_of_gallery_and_tutorials_is_drawn_by_the_code_before_it():
    for page in figures.PAGES:
        text = page.read_text(encoding="utf-8").split("</div>")[-1]  # not the small ones
        shown = re.findall(r"^!\[.*\]\(\.\./(img/\w+\.png)\)$", text, re.MULTILINE)
        drawn = [place for _, place in figures.BLOCK.findall(text) if place]
        assert shown == drawn
        assert all((ROOT / "docs" / place).exists() for place in shown)
