"""Real processes for tests: a pool that stays, of which any number can form a process group.

    pool = RankPool(3)
    pool.run(2, function, argument)    # what `function(argument)` returns on each of two ranks

Functions must be importable.  An error on a rank is raised here, once all ranks have answered.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable
from typing import Any

# Seconds after which a rank that does not answer fails the test.
PATIENCE = 240


class RankPool:
    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for _ in range(size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there,), daemon=True)
            process.start()
            self._pipes.append(here)
            self._processes.append(process)

    def run(self, size: int, function: Callable[..., Any], *given: Any) -> list[Any]:
        """The results of all ranks, in their order."""
        with tempfile.TemporaryDirectory() as folder:
            meeting = os.path.join(folder, "meeting")
            for rank in range(size):
                self._pipes[rank].send((rank, size, meeting, function, given))
            answers = []
            for pipe in self._pipes[:size]:
                assert pipe.poll(PATIENCE), "a rank does not answer"
                answers.append(pipe.recv())
        failures = [text for failed, text in answers if failed]
        if failures:
            raise AssertionError("\n".join(failures))
        return [result for _, result in answers]

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
            process.join()


def group_of_all() -> Any:
    """Called on a rank: all ranks of the process group, without a monitor."""
    import torch.distributed as dist

    from mercer.processes.group import Group

    world = dist.group.WORLD
    return Group(dist.get_rank(), dist.get_world_size(), world, world)


def on_the_desk() -> None:
    """Called on a rank: plan for a device that is the same on every machine."""
    import mercer.engine
    from mercer.planning.resource import Resource

    warnings.simplefilter("ignore")
    desk = Resource(capacity=2.7e8, memory=8 * 1024**3, full_rate_rows=256)
    mercer.engine.measure_resource = lambda device, dtype: desk


def _serve(pipe: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    while True:
        rank, size, meeting, function, given = pipe.recv()
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
        try:
            pipe.send((False, function(*given)))
        except BaseException:
            pipe.send((True, f"rank {rank}: {traceback.format_exc()}"))
        finally:
            dist.destroy_process_group()
