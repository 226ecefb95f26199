"""Peak memory of a computation (Linux), and computations in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil


def peak_bytes(action: Callable[[], object]) -> float:
    """The most memory that the process holds while `action` runs, less what it held before."""
    before = psutil.Process().memory_info().rss
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak, VmHWM
    action()
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    return float(peak - before)


def run_apart(arguments: list[str], **environment: str) -> str:
    """What `python arguments...` prints, in another process with this one's module path."""
    path = os.pathsep.join([os.getcwd(), *sys.path])
    env = os.environ | {"PYTHONPATH": path} | environment
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
