"""Real processes for tests: a pool that stays, of which any number can form a process group.

    pool = RankPool()
    pool.run(2, function, argument)    # what `function(argument)` returns on each of two ranks

Processes are started when they are first needed.  Functions must be importable.  An error on a rank is
raised here, once all ranks have answered.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any
from unittest.mock import patch

# Seconds after which a rank that does not answer fails the test.
PATIENCE = 240


class RankPool:
    def __init__(self) -> None:
        self._pipes: list[Any] = []
        self._processes: list[Any] = []

    def run(self, size: int, function: Callable[..., Any], *given: Any) -> list[Any]:
        """The results of all ranks, in their order."""
        while len(self._processes) < size:
            self._start()
        with tempfile.TemporaryDirectory() as folder:
            meeting = os.path.join(folder, "meeting")
            for rank in range(size):
                self._pipes[rank].send((rank, size, meeting, function, given))
            answers = []
            for pipe in self._pipes[:size]:
                if not pipe.poll(PATIENCE):
                    self.close()  # the next test gets ranks that answer
                    raise AssertionError("a rank does not answer")
                answers.append(pipe.recv())
            for pipe in self._pipes[:size]:
                pipe.send("leave")  # only now: a slow rank may still have been joining the group
        failures = [text for failed, text in answers if failed]
        if failures:
            raise AssertionError("\n".join(failures))
        return [result for _, result in answers]

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there,), daemon=True)
        process.start()
        self._pipes.append(here)
        self._processes.append(process)

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
            process.join()
        self._pipes, self._processes = [], []


def group_of_all() -> Any:
    """Called on a rank: the group of all ranks of this run."""
    import torch.distributed as dist

    from mercer.processes.group import Connections, Group

    world = dist.group.WORLD
    return Group(dist.get_rank(), dist.get_world_size(), Connections(world, world))


def on_the_desk() -> None:
    """Called on a rank: plan for a device that is the same on every machine."""
    import mercer.preparation.settings
    from mercer.planning.resource import Resource

    warnings.simplefilter("ignore")
    desk = Resource(capacity=2.7e8, memory=8 * 1024**3, full_rate_rows=256)
    mercer.preparation.settings.measure_resource = lambda device, dtype: desk


def command_line(*arguments: str) -> tuple[int, str, str]:
    """Called on a rank: the exit code of a command, and what it writes to standard output and error."""
    import torch.distributed as dist

    from mercer.cli import main

    on_the_desk()
    out, err = io.StringIO(), io.StringIO()
    rank = patch.dict(os.environ, RANK=str(dist.get_rank()))  # as a launcher does
    with rank, redirect_stdout(out), redirect_stderr(err):
        code = main(list(arguments))
    return code, out.getvalue(), err.getvalue()


def _serve(pipe: Any) -> None:
    import torch
    import torch.distributed as dist

    from mercer.processes import monitor

    torch.set_num_threads(1)
    monitor.BEAT_SECONDS = 0.25  # ranks learn of an error at the next beat
    while True:
        rank, size, meeting, function, given = pipe.recv()
        try:
            dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
            answer = False, function(*given)
        except BaseException:
            answer = True, f"rank {rank}: {traceback.format_exc()}"
        pipe.send(answer)
        pipe.recv()
        if dist.is_initialized():
            dist.destroy_process_group()
