"""Record a visit to the page of `mercer explore`, docs/img/explore*: python -m docs.animation

Needs Chromium with its driver, Pillow, and MERCER_DATA with the California houses.  The errors are those
of the runs that train while it is recorded.  Its pauses are for readers: it does not show times.
"""

from __future__ import annotations

import base64
import io
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image, ImageChops

import mercer
from tests.browser import Browser, started

FOLDER = Path(__file__).parent / "img"
WIDTH, HEIGHT = 1280, 870
SHOWN_WIDTH = 960
COLOURS = 200
# Milliseconds of a frame while something moves, and of one that a reader has to read.
MOVING, READING, LAST = 140, 1300, 3200
# A pointer, drawn over the page: a screenshot has none.
POINTER = """
const pointer = document.createElement('div');
pointer.id = 'pointer';
pointer.innerHTML = '<svg width="26" height="26" viewBox="0 0 26 26"><path fill="#111" stroke="#fff" '
  + 'stroke-width="1.6" d="M4 2v19l5-5 3.4 7.6 3.2-1.4-3.4-7.4H19z"/></svg>';
pointer.style = 'position:fixed;z-index:99;left:700px;top:400px;pointer-events:none';
document.body.append(pointer);
"""
POINT = """
const box = document.querySelector('{target}').getBoundingClientRect();
const pointer = document.querySelector('#pointer').style;
pointer.left = (box.left + {share} * box.width - 4) + 'px';
pointer.top = (box.top + box.height / 2 - 2) + 'px';
"""
MOVE = """
const slider = document.querySelector('#{control}');
slider.value = {value};
slider.dispatchEvent(new Event('input', {{bubbles: true}}));
const share = (slider.value - slider.min) / (slider.max - slider.min);
const box = slider.getBoundingClientRect();
const pointer = document.querySelector('#pointer').style;
pointer.left = (box.left + 8 + share * (box.width - 16) - 4) + 'px';
pointer.top = (box.top + box.height / 2 - 2) + 'px';
"""
DONE = "document.querySelector('#progress').textContent.startsWith('Ended')"
FRESH = "document.querySelectorAll('.card.stale').length === 0"
BOX = """
const box = document.querySelector('{target}').getBoundingClientRect();
return [box.left + scrollX, box.top + scrollY, box.right + scrollX, box.bottom + scrollY];
"""


class Film:
    """Frames of the page, each with the time that it is shown."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.frames: list[Image.Image] = []
        self.durations: list[int] = []

    def shoot(self, milliseconds: int = MOVING) -> None:
        data = self.browser.devtools("Page.captureScreenshot")["data"]
        frame = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")
        height = round(frame.height * SHOWN_WIDTH / frame.width)
        frame = frame.resize((SHOWN_WIDTH, height), Image.Resampling.LANCZOS)
        if self.frames and ImageChops.difference(frame, self.frames[-1]).getbbox() is None:
            self.durations[-1] += milliseconds
        else:
            self.frames.append(frame)
            self.durations.append(milliseconds)

    def until_done(self, milliseconds: int = READING, pause: float = 0.0) -> None:
        """Film a run until it has ended and all cards belong to it, with a pause between the frames."""
        while not self.browser.value(f"{DONE} && {FRESH}"):
            self.shoot()
            time.sleep(pause)
        self.shoot(milliseconds)

    def drag(self, control: str, values: list[float]) -> None:
        """Move a slider; the run that trains meanwhile is cancelled at each step."""
        for value in values:
            self.browser.run(MOVE.format(control=control, value=value))
            self.shoot()

    def save(self, path: Path) -> None:
        palette = self.frames[-1].quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE)
        frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in self.frames]
        frames[0].save(
            path, save_all=True, append_images=frames[1:], duration=self.durations, loop=0, optimize=True
        )


def photograph(browser: Browser, first: str, last: str, path: Path) -> None:
    """A picture of the page from the corner of one element to that of another."""
    left, top, _, _ = browser.run(BOX.format(target=first))
    _, _, right, bottom = browser.run(BOX.format(target=last))
    clip = {"x": left - 8, "y": top - 8, "width": right - left + 16, "height": bottom - top + 16}
    options = {"captureBeyondViewport": True, "clip": {**clip, "scale": 1}}
    path.write_bytes(base64.b64decode(browser.devtools("Page.captureScreenshot", **options)["data"]))


def main() -> None:
    with np.load(Path(os.environ["MERCER_DATA"]) / "california_houses.npz") as data:
        frame = pd.DataFrame(data["X"], columns=[str(name) for name in data["feature_names"]])
        price = data["y"]
    explorer = mercer.explore(frame, price, title="houses.csv", block=False, open_browser=False)
    browsers = started(Path(tempfile.mkdtemp()))
    try:
        browser = next(browsers)
        browser.open(explorer.url, WIDTH, HEIGHT)
        browser.run(POINTER)
        browser.wait(f"{DONE} && {FRESH}")
        film = Film(browser)
        film.shoot(READING)
        film.drag("ratio", [0.1, 0.3, 0.5, 0.7])
        film.until_done()
        film.drag("rows", [0.64, 0.7, 0.76, 0.82])
        film.until_done()
        browser.run(POINT.format(target="#metric", share=0.5))
        film.shoot()
        browser.click("#metric")
        film.shoot()
        browser.run(POINT.format(target="#auto", share=0.6))
        browser.click("#auto")
        browser.wait(f"!({DONE})")
        film.until_done(LAST, pause=1.0)
        film.save(FOLDER / "explore.gif")
        browser.run("document.querySelector('#pointer').remove()")
        for place in (1, 2):  # the search, and the run before it
            browser.click(f".runs tbody tr:nth-child({place}) input[type=checkbox]")
        browser.wait("document.querySelectorAll('#comparison thead th').length === 3")
        photograph(browser, "body", "#comparison", FOLDER / "explore.png")
        photograph(browser, "#slice", "#plan", FOLDER / "explore_function.png")
        for path in sorted(FOLDER.glob("explore*")):
            print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")
    finally:
        next(browsers, None)
        explorer.close()


if __name__ == "__main__":
    main()
