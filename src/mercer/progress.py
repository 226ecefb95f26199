"""What a person sees while training runs: one live line in a terminal, one line an epoch elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from mercer.training import Epoch

# Redrawing more often than this only flickers.
REDRAW_SECONDS = 0.1
CLEAR = "\r\x1b[K"


class ConsoleProgress:
    """Callbacks for `training.train` that write to a stream (standard error by default)."""

    def __init__(self, max_epochs: int, stream: TextIO | None = None) -> None:
        self.max_epochs = max_epochs
        self.stream = sys.stderr if stream is None else stream
        self.live = self.stream.isatty()
        self._drawn = 0.0
        self._epoch_start = time.perf_counter()

    def on_batch(self, epoch: int, batch: int, n_batches: int, loss: float) -> None:
        now = time.perf_counter()
        if batch == 1:
            self._epoch_start = now
        if not self.live or now - self._drawn < REDRAW_SECONDS:
            return
        self._drawn = now
        left = (now - self._epoch_start) / batch * (n_batches - batch)
        filled = 24 * batch // n_batches
        self.stream.write(
            f"{CLEAR}epoch {epoch}  [{'█' * filled}{'·' * (24 - filled)}] batch {batch}/{n_batches}  "
            f"loss {loss:.4g}  {left:.0f} s left in this epoch"
        )
        self.stream.flush()

    def on_epoch(self, epoch: Epoch) -> None:
        parts = [f"epoch {epoch.number:>3}", f"train loss {epoch.train_loss:.4g}"]
        if epoch.validation_loss is not None and epoch.validation_score is not None:
            parts.append(f"held-out loss {epoch.validation_loss:.4g}")
            parts.append(f"score {epoch.validation_score:.4f}")
        parts.append(f"{epoch.seconds:.2f} s")
        if epoch.halvings:
            parts.append(f"step halved {epoch.halvings} ×")
        self.stream.write((CLEAR if self.live else "") + "  ".join(parts) + "\n")
        self.stream.flush()
