"""From `torchrun`'s environment, or a process group that the program made, to a `Group`."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakSet

import torch
import torch.distributed as dist

from mercer.processes.group import LONGEST_CAUSE, Connections, Group, RankError
from mercer.processes.monitor import Monitor, patience
from mercer.processes.seats import Seat

# What `torchrun` sets.
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Ranks wait for one another as long as the monitor finds nothing wrong.
NO_LIMIT = timedelta(days=30)
# How long they wait for one another at the beginning: hosts may start one after the other.
JOINING = timedelta(minutes=10)
# How often rank 0 looks for ranks that have come.
MEETING_SECONDS = 0.02
# The launchers of `torchrun` count a host as gone 15 s after its last sign of life.  One that starts its
# ranks again before that takes the dead host for a live one, and waits for it in vain.
HOST_GONE_SECONDS = 18.0

_here = threading.local()
# By process group and kind of device.  A group that the program destroyed must not keep its threads.
_known: WeakKeyDictionary[dist.ProcessGroup, dict[str, Connections]] = WeakKeyDictionary()
_open: WeakSet[Connections] = WeakSet()
# Kept, because to close these would be to wait for a rank that is gone.
_broken: list[Connections] = []


@contextmanager
def alone() -> Iterator[None]:
    """In the block, this process works on its own, also where it is a rank of a process group.

    For what only some ranks do: `predict` on rank 0, for example, or different models on each rank.
    """
    before = getattr(_here, "alone", False)
    _here.alone = True
    try:
        yield
    finally:
        _here.alone = before


@contextmanager
def ranks(device: torch.device) -> Iterator[Group | None]:
    """The group that this process is a rank of, looked after for the length of the block.

    None outside a group, and in a block that is inside another one or inside `alone`.
    """
    found = None if getattr(_here, "alone", False) else _connections(device)
    if found is None:
        yield None
        return
    if found.broken:
        raise RankError("A rank is gone, so the others cannot go on: start the program again.")
    group = Group(dist.get_rank(), dist.get_world_size(), found)
    with alone():  # what happens in the block belongs to this group
        group.seats = [Seat.here(device)] * group.size
        try:
            with Monitor(group):
                group.seats[:] = group.gathered(Seat.here(device))
                yield group
        finally:
            group.ended = True
            if found.broken:
                _broken.append(found)


def restarts() -> int:
    """How often `torchrun` has started the ranks again after a fault."""
    text = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return int(text) if text.isdigit() else 0


def _world(device: torch.device) -> dist.ProcessGroup | None:
    if not dist.is_available():
        return None
    if not dist.is_initialized():
        # Processes that a rank starts for work of its own inherit its environment.
        launched = all(name in os.environ for name in VARIABLES)
        if not launched or multiprocessing.parent_process() is not None:
            return None
        backend = "nccl" if device.type == "cuda" else "gloo"
        try:
            _join(backend)
        except (RuntimeError, ValueError) as error:
            raise _not_found(error) from error
    return dist.group.WORLD


def _join(backend: str) -> None:
    """Make a process group from the environment."""
    rank, size, host, port = (os.environ[name] for name in VARIABLES)
    launcher_has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        host,
        int(port),
        int(size),
        is_master=rank == "0" and not launcher_has_store,
        timeout=JOINING,
        multi_tenant=True,
    )
    part = f"mercer/{name_of_attempt(store, int(rank), int(size))}"
    own = dist.PrefixStore(part, store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=own, rank=int(rank), world_size=int(size), timeout=NO_LIMIT)


def name_of_attempt(store: Any, rank: int, size: int) -> str:
    """A name that the ranks which are here now agree on.

    The store at which ranks meet outlives a restart, and PyTorch would find the addresses of the ranks
    before it.  Launchers on several hosts count restarts differently, so the count is no name.  Instead,
    each rank leaves a word of its own; rank 0 answers all it finds with the name of the attempt, and
    goes on once every rank has confirmed that it was answered.
    """
    own = uuid4().hex
    if rank != 0:
        store.set(f"mercer/word/{rank}", own)
        name = str(store.get(f"mercer/answer/{own}").decode())
        store.set(f"mercer/confirmed/{name}/{rank}", "")
        return name
    missing, deadline = list(range(1, size)), time.monotonic() + JOINING.total_seconds()
    while missing:
        for other in missing:
            if store.check([f"mercer/word/{other}"]):  # it may be that of an earlier attempt
                store.set(f"mercer/answer/{store.get(f'mercer/word/{other}').decode()}", own)
        missing = [other for other in missing if not store.check([f"mercer/confirmed/{own}/{other}"])]
        if missing and time.monotonic() > deadline:
            raise RuntimeError(f"rank {missing[0]} did not come in {JOINING.total_seconds():.0f} s")
        time.sleep(MEETING_SECONDS)
    return own


def _connections(device: torch.device) -> Connections | None:
    """Those between the ranks that this process is one of, made when they are first needed."""
    world = _world(device)
    if world is None:
        return None
    known = _known.setdefault(world, {})
    if device.type not in known:
        try:
            known[device.type] = _connected(device.type)
        except RuntimeError as error:
            raise _not_found(error) from error
    return known[device.type]


def _connected(device: str) -> Connections:
    talk = dist.new_group(backend="gloo", timeout=NO_LIMIT)
    beats = dist.new_group(backend="gloo", timeout=timedelta(seconds=patience()))
    tensors = talk if device == "cpu" else dist.new_group(backend="nccl", timeout=NO_LIMIT)
    made = Connections(tensors, talk, beats)
    _open.add(made)
    return made


@atexit.register
def _leave() -> None:
    """Close the connections; if a rank is gone, without waiting for an answer that will never come.

    A thread of gloo lets go of the tensors of a message some time after the message has come.  It needs
    the interpreter for that, and aborts the process if the interpreter ends first: so the threads end
    here, before it does.
    """
    if _broken:
        sys.stdout.flush()
        sys.stderr.flush()
        if is_restarted_with_other_hosts():
            time.sleep(HOST_GONE_SECONDS)
        os._exit(1)
    opened = list(_open)
    if opened and dist.is_initialized():
        dist.destroy_process_group()
    for connections in opened:
        connections.close()


def is_restarted_with_other_hosts() -> bool:
    """Whether `torchrun` will start this rank again, together with ranks on other hosts."""
    counts = [os.environ.get(name, "0") for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE")]
    most = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    return counts[0] != counts[1] and most.isdigit() and restarts() < int(most)


def _not_found(error: Exception) -> RankError:
    reason = (str(error).splitlines() or [type(error).__name__])[0][:LONGEST_CAUSE]
    address = ":".join(os.environ.get(name, "?") for name in VARIABLES[2:])
    return RankError(
        f"The ranks could not connect to one another ({reason}). The first host must be reachable at "
        f"{address} from all others; and where the name of a host stands for 127.0.0.1, as on some "
        "Linux systems, set GLOO_SOCKET_IFNAME to its network interface, such as eth0."
    )
