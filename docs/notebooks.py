"""Make the notebooks in examples/ of the tutorials: python docs/notebooks.py

A Python block becomes a cell of code, all else text.  Output is left out: running a notebook makes it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
NOTEBOOKS = FOLDER.parent / "examples"
TUTORIALS = {
    "tumours": FOLDER / "tutorials" / "classes.md",
    "patients": FOLDER / "tutorials" / "numbers.md",
    "digits": FOLDER / "tutorials" / "images.md",
}
CODE = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r"^```text\n.*?^```\n|^!\[[^\n]*\n", re.MULTILINE | re.DOTALL)


def notebook(page: Path) -> str:
    """A notebook of the format 4.5, without output."""
    text = OUTPUT.sub("", page.read_text(encoding="utf-8"))
    parts = CODE.split(text)
    cells = []
    for number, part in enumerate(parts):
        source = part.strip("\n")
        if source:
            cells.append(_cell(f"cell-{number}", source, is_code=number % 2 == 1))
    content = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _cell(name: str, source: str, is_code: bool) -> dict[str, Any]:
    if is_code:
        fields: dict[str, Any] = {"cell_type": "code", "execution_count": None, "outputs": []}
    else:
        source = re.sub(r"\n{3,}", "\n\n", source)
        source = re.sub(r"\]\(\.\./", "](../docs/", source)
        source = re.sub(r"\]\((\w+\.md)", r"](../docs/tutorials/\1", source)
        fields = {"cell_type": "markdown"}
    return {**fields, "id": name, "metadata": {}, "source": source.splitlines(keepends=True)}


def main() -> None:
    for name, page in TUTORIALS.items():
        (NOTEBOOKS / f"{name}.ipynb").write_text(notebook(page), encoding="utf-8")


if __name__ == "__main__":
    main()
