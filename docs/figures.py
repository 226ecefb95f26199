"""Draw the pictures of the gallery and of the tutorials into docs/img: python docs/figures.py

The code is that of the pages: a picture is what the Python block right before it draws.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
PAGES = [FOLDER / "guide" / "plots.md", *sorted((FOLDER / "tutorials").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n!\[[^\]]*\]\(\.\./(img/\w+\.png)\))?", re.M | re.S)
DOTS_PER_INCH = 120


def draw(page: Path) -> None:
    import matplotlib.pyplot as plt

    namespace = {"__name__": "__main__"}
    for source, place in BLOCK.findall(page.read_text(encoding="utf-8")):
        exec(compile(source, str(page), "exec"), namespace)
        if place:
            plt.gcf().savefig(FOLDER / place, dpi=DOTS_PER_INCH)
    plt.close("all")


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    os.chdir(tempfile.mkdtemp())  # examples write files
    for page in PAGES:
        draw(page)


if __name__ == "__main__":
    main()
