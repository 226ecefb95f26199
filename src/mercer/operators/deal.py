"""Which columns of K belong to which process of a group.

Columns are cut into blocks, four or more to a panel, which are dealt to the ranks in turn.  So each rank
has its share of every panel, and the triangle of the first epoch is balanced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mercer.data.held import Held
from mercer.operators.summation import pieces
from mercer.processes.group import Group

# Columns of a block: on a CPU a quarter of a panel.  Smaller tiles take longer to evaluate (4 % at 256
# columns, 15 % at 128, with 100 features).  With larger ones, many ranks would have no part of a panel.
CPU_BLOCK_COLUMNS = 256
DEVICE_BLOCK_COLUMNS = 512
# Blocks are added in this many sums for each panel, whatever the number of ranks.
LANES = 128


@dataclass(frozen=True)
class Block:
    """Columns that one rank evaluates."""

    columns: slice
    panel: slice  # that they are a part of
    lane: int

    def __len__(self) -> int:
        return int(self.columns.stop - self.columns.start)


class Deal:
    """Which columns belong to which rank: blocks are dealt in turn, lane by lane.

    `s` columns, whole panels, are the fixed block.
    """

    def __init__(self, panels: Sequence[slice], s: int, group: Group, device: torch.device) -> None:
        self.panels = panels
        self.s = s
        self.group = group
        width = block_columns(device)
        cut = [(c, panel) for panel in panels for c in pieces(panel.start, panel.stop, width)]
        self.n_blocks = len(cut)
        self.own = [
            Block(columns, panel, i % LANES)
            for i, (columns, panel) in enumerate(cut)
            if i % LANES % group.size == group.rank
        ]

    def between(self, start: int, stop: int) -> list[Block]:
        """The blocks of this rank that begin in a range of columns."""
        return [block for block in self.own if start <= block.columns.start < stop]

    @property
    def held(self) -> Held:
        """The rows that this rank needs at hand: those of its columns, and the fixed block."""
        beyond = [block.columns for block in self.own if block.columns.start >= self.s]
        fixed = [slice(0, self.s)] if self.s else []
        return Held(self.panels[-1].stop, [*fixed, *beyond], self.s)

    @property
    def busy_ranks(self) -> int:
        """Ranks that have columns."""
        return min(self.group.size, self.n_blocks, LANES)


def block_columns(device: torch.device) -> int:
    return CPU_BLOCK_COLUMNS if device.type == "cpu" else DEVICE_BLOCK_COLUMNS
