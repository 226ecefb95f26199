"""Progress: a live line in terminals, one line below the cell in notebooks, else one line per epoch."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

from mercer.digits import in_digits
from mercer.notebook import NotebookLine
from mercer.training.history import Epoch

# Redrawing more often than this only flickers.
REDRAW_SECONDS = 0.1
# Show nothing for what takes less than this.
PATIENCE_SECONDS = 2.0
CLEAR = "\r\x1b[K"
BAR = 24


class ConsoleProgress:
    """Writes to a stream, standard error by default; to pipes and files, epochs only."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self._notebook = NotebookLine.of(self.stream)
        self.live = self.stream.isatty() or self._notebook is not None
        self._drawn = 0.0
        self._start = time.perf_counter()
        self._score = ""  # of the last epoch that had one

    def on_stage(self, text: str) -> None:
        """Show a stage that has no steps to count."""
        self._show(f"{text} …")

    def on_text(self, text: str) -> None:
        """Text for standard output."""
        print(text)

    def on_batch(self, epoch: int, batch: int, n_batches: int, loss: float) -> None:
        if batch == 1:
            self._start = time.perf_counter()
        if self._due():
            left = self._left(batch, n_batches)
            count = f"batch {batch}/{n_batches}  loss {in_digits(loss)}{self._score}"
            count = f"{count}  {left:.0f} s left in this epoch"
            whole = f"epoch {epoch}  {_bar(batch, n_batches)} {count}"
            # On a narrow terminal the numbers say more than the bar.
            self._show(whole if len(whole) < _width() else f"epoch {epoch}  {count}")

    def on_epoch(self, epoch: Epoch) -> None:
        parts = [f"epoch {epoch.number:>3}", f"train loss {in_digits(epoch.train_loss)}"]
        if epoch.validation_loss is not None and epoch.validation_score is not None:
            parts.append(f"held-out loss {in_digits(epoch.validation_loss)}")
            self._score = f"  score {epoch.validation_score:.4f}"
            parts.append(self._score.strip())
        if epoch.closing:
            parts.append("on all rows")
        parts.append(f"{epoch.seconds:.2f} s")
        if epoch.halvings:
            parts.append(f"step halved {epoch.halvings} ×")
        if self._notebook is not None:
            self._notebook.show("  ".join(parts))
            return
        self.stream.write((CLEAR if self.live else "") + "  ".join(parts) + "\n")
        self.stream.flush()

    def on_rows(self, done: int, total: int) -> None:
        """Rows predicted; shows nothing for short predictions."""
        if time.perf_counter() - self._start > PATIENCE_SECONDS and self._due():
            left = self._left(done, total)
            self._show(f"predicting  {_bar(done, total)} {done:,}/{total:,} rows  {left:.0f} s left")
        if done == total:
            self.clear()

    def clear(self) -> None:
        """Remove the live line."""
        self._show("")

    def _left(self, done: int, total: int) -> float:
        return (time.perf_counter() - self._start) / done * (total - done)

    def _due(self) -> bool:
        now = time.perf_counter()
        if not self.live or now - self._drawn < REDRAW_SECONDS:
            return False
        self._drawn = now
        return True

    def _show(self, text: str) -> None:
        if self._notebook is not None:
            self._notebook.show(text)
        elif self.live:
            # A line that wraps could not be removed again.
            self.stream.write(CLEAR + text[: _width() - 1])
            self.stream.flush()


def _width() -> int:
    return shutil.get_terminal_size().columns


def _bar(done: int, total: int) -> str:
    filled = BAR * done // total
    return f"[{'█' * filled}{'·' * (BAR - filled)}]"
