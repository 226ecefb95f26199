"""All ranks end training at the same panel: where rank 0 says so.

Only rank 0 has a console and callbacks.  What it decides after a panel is sent while the next panel is
computed, so nobody waits for it, and training ends one panel later.  After an epoch the others wait, and
answer what rank 0 asks, so its callbacks may use a model whose points they hold.

The ranks also compare their residuals: different kinds of processors round differently, and would part
ways.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from mercer.processes.group import Group, RankError
from mercer.processes.joining import alone
from mercer.training.history import Epoch
from mercer.training.loop import Training, Watcher

# Bits of a residual that are compared; sums over ranks of so many are exact in 64.
COMPARED_BITS = 32


class Agreement(Watcher):
    """Passes events of a run on to a watcher on rank 0, and its verdicts on to all ranks."""

    def __init__(self, watcher: Watcher, group: Group) -> None:
        self.watcher = watcher
        self.group = group
        self._verdict: str | None = None  # of rank 0, not yet known to all
        self._ended: str | None = None  # known to all
        self._mark = 0  # of this rank's residual
        self._notes = torch.zeros(0)
        self._sending: list[Any] = []

    def on_batch(self, epoch: int, batch: int, n_batches: int, loss: float) -> None:
        if self.group.is_first:
            self.watcher.on_batch(epoch, batch, n_batches, loss)

    def on_panel(self, training: Training) -> str | None:
        self._receive()
        if self._ended is None:
            if self.group.is_first:
                with alone(), self._apart():
                    self._verdict = self.watcher.on_panel(training)
            self._send(training)
        return self._ended

    def on_epoch(self, epoch: Epoch, training: Training) -> str | None:
        self._receive()

        def told() -> str | None:
            with alone():
                return self.watcher.on_epoch(epoch, training)

        self._verdict = self.group.decided(told) or self._verdict
        self._send(training)
        self._receive()
        return self._ended

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """While rank 0 does something alone."""
        self.group.apart = True
        try:
            yield
        finally:
            self.group.apart = False

    def _send(self, training: Training) -> None:
        """Tell whether rank 0 has a verdict, and what this rank's residual is."""
        self._mark = _bits(training.state.progress.best_residual + training.state.progress.residual)
        notes = [int(self._verdict is not None), self._mark]
        self._notes = torch.tensor(notes, dtype=torch.int64, device=training.y.device)
        self._sending = self.group.start_adding(self._notes)

    def _receive(self) -> None:
        """Learn what was sent last."""
        if not self._sending:
            return
        self.group.finish(self._sending)
        self._sending = []
        has_verdict, marks = self._notes.tolist()
        if marks != self.group.size * self._mark:
            raise RankError(
                f"Rank {self.group.rank} ({self.group.seats[self.group.rank]}) computes other numbers "
                "than the other ranks: all need the same kind of processor."
            )
        if has_verdict:
            self._ended, self._verdict = self.group.from_first(self._verdict), None


def _bits(value: float) -> int:
    """A number from the bits of another."""
    bits = int.from_bytes(struct.pack("<d", value), "little")
    return (bits ^ bits >> COMPARED_BITS) % (1 << COMPARED_BITS)
