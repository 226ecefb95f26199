"""Run many hostile cases in child processes, and name each case that ends, hangs or exhausts one.

    python -m benchmarks.torture.sandbox MODULE    is started by `failures`; reads cases from its input

MODULE defines `check(case: Path) -> str | None`, which returns what is wrong, or None.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import psutil

# Bytes of address space that a case may take beside the libraries, which is more than it may use.
MOST_MEMORY = 3 << 30
# No case is large; one that takes this long, even on a busy machine, would not end by itself.
MOST_SECONDS = 60.0
# A process that waits for something takes so many times as long before it counts as hanging.
HANG_FACTOR = 10


def failures(module: str, cases: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """The cases that fail, each with the reason."""
    done = 0
    while done < len(cases):
        with tempfile.TemporaryFile() as names, tempfile.TemporaryFile() as printed:
            names.write("".join(f"{case}\n" for case in cases[done:]).encode())
            names.seek(0)
            with _child(module, names, printed) as child:
                assert child.stdout is not None
                for case in cases[done:]:
                    done += 1
                    is_ready = _answers(child)
                    line = child.stdout.readline() if is_ready else b""
                    if not line:
                        child.kill()
                        yield case, _how_it_ended(child, printed) if is_ready else "takes too long"
                        break
                    wrong = json.loads(line)
                    if wrong is not None:
                        yield case, wrong


def _answers(child: subprocess.Popen[bytes]) -> bool:
    """Whether it answers in time: its own processor time, so that a busy machine is no failure."""
    assert child.stdout is not None
    process = psutil.Process(child.pid)
    begun = process.cpu_times()
    for _ in range(HANG_FACTOR):
        if select.select([child.stdout], [], [], MOST_SECONDS)[0]:
            return True
        now = process.cpu_times()
        if now.user + now.system - begun.user - begun.system >= MOST_SECONDS:
            return False
    return False


def _child(module: str, names: IO[bytes], printed: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.torture.sandbox", module],
        stdin=names,
        stdout=subprocess.PIPE,
        stderr=printed,
        bufsize=0,  # lines in a buffer would not be seen by `select`
        env=os.environ | {"PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
    )


def _how_it_ended(child: subprocess.Popen[bytes], printed: IO[bytes]) -> str:
    code = child.wait()
    printed.seek(0)
    said = " ".join(printed.read().decode(errors="replace").split())
    return f"ends the process with code {code}: {said[-200:]}"


def serve(check: Callable[[Path], str | None]) -> None:
    """Check the cases named on standard input; print the outcomes, one per line."""
    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY, resource.RLIM_INFINITY))
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    for line in sys.stdin:
        before = os.fstat(sys.stderr.fileno()).st_size
        try:
            wrong = check(Path(line.rstrip("\n")))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # panics of Rust are no Exception
            wrong = f"raises {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        if wrong is None and os.fstat(sys.stderr.fileno()).st_size > before:
            wrong = "prints to standard error"
        answers.write(json.dumps(wrong) + "\n")


if __name__ == "__main__":
    serve(importlib.import_module(sys.argv[1]).check)
