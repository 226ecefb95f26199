"""Starting a command on several processes: PyTorch's `torchrun` runs the same command on each rank."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from mercer.cli.messages import CallError

# Options that are meant for the launcher; the ranks do not see them.
LAUNCH_OPTIONS = ("--ranks", "--restarts")


def rank_here() -> int:
    """The rank of this process, 0 where there is only one."""
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdigit() else 0


def launched(arguments: Sequence[str], ranks: int, restarts: int, checkpoint: str | None) -> int:
    """Run the command on so many ranks of this machine; the exit code."""
    if restarts and checkpoint is None:
        raise CallError("--restarts needs --checkpoint, the file from which training goes on.")
    if "-" in arguments:
        raise CallError("--ranks needs a file that every rank can read. Got - for standard input.")
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    counts = [f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
    # The files were checked before, and those that a restart finds are of the attempt before it.
    name, *rest = without_launch_options(arguments)
    command = [*start, *counts, "-m", "mercer", name, "--force", *rest]
    # Each rank takes its share of the cores, so this only keeps torchrun from a remark on it.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    return subprocess.run(command, env=environment, check=False).returncode


def without_launch_options(arguments: Sequence[str]) -> list[str]:
    """The arguments for the ranks.

    >>> without_launch_options(["fit", "x.csv", "--ranks", "4", "--restarts=2", "-o", "m"])
    ['fit', 'x.csv', '-o', 'm']
    """
    kept: list[str] = []
    skips = False
    for word in arguments:
        if not skips and word.split("=")[0] not in LAUNCH_OPTIONS:
            kept.append(word)
        skips = not skips and word in LAUNCH_OPTIONS
    return kept
