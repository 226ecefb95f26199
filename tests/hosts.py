"""Several hosts on one machine: network namespaces of Linux, joined by a switch or by a slow line.

    with Hosts() as hosts:
        job = hosts.start(0, ["python", "-m", "torch.distributed.run", ..., "train.py"])
        hosts.cut(1)        # the cable of the second host is pulled
        hosts.mend(1)
        hosts.kill(1)       # all its processes

Hosts have names and addresses of their own, and reach one another and nothing else.  Each is connected
to a switch, a bridge, by a pair of virtual Ethernet devices.  With a `delay`, two hosts are joined by a
line whose packets arrive that much later: two TUN devices, with a thread between them, since `tc netem`
is not in every kernel.  It takes root, iproute2 and util-linux; `missing()` says what is not there.
"""

from __future__ import annotations

import fcntl
import os
import re
import selectors
import shutil
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

# Mounted over /etc by `ip netns exec`.
NAMESPACE_FILES = Path("/etc/netns")
TUN = "/dev/net/tun"
# From linux/if_tun.h: attach to a device; packets of the internet protocol without a header.
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
LARGEST_PACKET = 60_000
# Seconds in which a command of iproute2 ends.
COMMAND_SECONDS = 30


def missing() -> str | None:
    """What this machine lacks for several hosts, None if nothing."""
    if os.name != "posix" or os.geteuid() != 0:
        return "several hosts need root"
    absent = [name for name in ("ip", "unshare", "hostname") if shutil.which(name) is None]
    if absent:
        return f"several hosts need iproute2, util-linux and hostname; not found: {', '.join(absent)}"
    try:
        with Hosts(1):
            return None
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or str(error)
        return f"several hosts need network namespaces, which are not allowed here: {reason.strip()}"


class Hosts:
    """Hosts that exist for the length of a block; `delay` is in seconds, each way."""

    def __init__(self, count: int = 2, delay: float = 0.0) -> None:
        if delay and count != 2:
            raise ValueError(f"A line with a delay joins two hosts. Got {count}.")
        self.addresses = [f"10.77.0.{i + 1}" for i in range(count)]
        self.names = [f"mercer-{os.getpid()}-host{i}" for i in range(count)]
        self._switch = f"mercer-{os.getpid()}-switch"
        self._delay = delay
        self._line: SlowLine | None = None

    def __enter__(self) -> Hosts:
        _remove_forgotten()
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._remove()

    def start(
        self, host: int, command: Sequence[str], environment: Mapping[str, str], **options: Any
    ) -> subprocess.Popen[str]:
        """Run a command on a host, which has its own name."""
        name = self.names[host]
        named = f"hostname {name} && exec " + '"$@"'
        inside = ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", named, "sh", *command]
        env = {**environment, "GLOO_SOCKET_IFNAME": "net"}
        return subprocess.Popen(inside, env=env, text=True, **options)

    def launcher(self, python: str, host: int, *options: str) -> list[str]:
        """The command that starts this host's ranks: `torchrun`, which meets at the first host."""
        return [
            *(python, "-m", "torch.distributed.run", f"--nnodes={len(self.names)}"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint={self.addresses[0]}:29500", "--rdzv-id=test"),
            *(f"--local-addr={self.addresses[host]}", *options),
        ]

    def cut(self, host: int) -> None:
        """Nothing that the host sends arrives any more, and nothing reaches it."""
        _ip("-n", self._switch, "link", "set", f"port{host}", "down")

    def mend(self, host: int) -> None:
        _ip("-n", self._switch, "link", "set", f"port{host}", "up")

    def kill(self, host: int) -> None:
        """End all processes of a host at once."""
        _kill_all(self.names[host])

    def sent_bytes(self, host: int) -> int:
        """Bytes that the host has sent, headers included."""
        path = "/sys/class/net/net/statistics/tx_bytes"
        # The files below /sys are those of the namespace, as `ip netns exec` mounts them.
        inside = ["ip", "netns", "exec", self.names[host], "cat", path]
        done = subprocess.run(inside, check=True, capture_output=True, timeout=COMMAND_SECONDS)
        return int(done.stdout)

    def _make(self) -> None:
        listed = "".join(f"{a} {name}\n" for a, name in zip(self.addresses, self.names, strict=True))
        for name in self.names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
            (NAMESPACE_FILES / name).mkdir(parents=True)
            (NAMESPACE_FILES / name / "hosts").write_text(f"127.0.0.1 localhost\n{listed}")
        if self._delay:
            self._line = SlowLine(self.names, self._delay)
        else:
            self._connect_to_switch()
        for name, address in zip(self.names, self.addresses, strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "net")
            _ip("-n", name, "link", "set", "net", "up")

    def _connect_to_switch(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge", "up")
        for i, name in enumerate(self.names):
            port = f"port{i}"
            pair = ("type", "veth", "peer", "name", port, "netns", self._switch)
            _ip("link", "add", "net", "netns", name, *pair)
            _ip("-n", self._switch, "link", "set", port, "master", "bridge", "up")

    def _remove(self) -> None:
        if self._line is not None:  # before its devices are gone
            self._line.close()
        for name in [*self.names, self._switch]:
            _remove(name)


class SlowLine:
    """Two TUN devices named `net`, one in each namespace; packets between them arrive after a delay."""

    def __init__(self, namespaces: Sequence[str], delay: float) -> None:
        self._delay = delay
        self._ends: list[int] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        for i, namespace in enumerate(namespaces):
            end = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
            self._ends.append(end)
            device = f"mercer{os.getpid()}{'ab'[i]}"  # it moves before another one could have its name
            wanted = struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI)
            fcntl.ioctl(end, TUNSETIFF, wanted)
            _ip("link", "set", device, "mtu", str(LARGEST_PACKET), "netns", namespace, "name", "net")
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        for end in self._ends:
            os.close(end)

    def _carry(self) -> None:
        underway: deque[tuple[float, int, bytes]] = deque()  # when, where to, what
        with selectors.DefaultSelector() as ready:
            for end, other in zip(self._ends, reversed(self._ends), strict=True):
                ready.register(end, selectors.EVENT_READ, other)
            while not self._closed.is_set():
                wait = underway[0][0] - time.monotonic() if underway else 0.1
                for key, _ in ready.select(max(0.0, wait)):
                    packet = os.read(key.fd, LARGEST_PACKET + 100)
                    underway.append((time.monotonic() + self._delay, key.data, packet))
                while underway and underway[0][0] <= time.monotonic():
                    _, end, packet = underway.popleft()
                    with suppress(OSError):  # lost, as packets may be, where the device is not up
                        os.write(end, packet)


def _kill_all(namespace: str) -> None:
    for process in _ip("netns", "pids", namespace).split():
        with suppress(ProcessLookupError):
            os.kill(int(process), 9)


def _remove(namespace: str) -> None:
    """End what runs there, and remove it with its files."""
    if namespace in _ip("netns", "list").split():
        _kill_all(namespace)
        _ip("netns", "del", namespace)
    shutil.rmtree(NAMESPACE_FILES / namespace, ignore_errors=True)


def _remove_forgotten() -> None:
    """Remove what processes that were killed have left."""
    for name in _ip("netns", "list").split():
        owner = re.fullmatch(r"mercer-(\d+)-\w+", name)
        if owner is not None and not os.path.exists(f"/proc/{owner[1]}"):
            _remove(name)


def _ip(*arguments: str) -> str:
    done = subprocess.run(
        ["ip", *arguments], check=True, capture_output=True, text=True, timeout=COMMAND_SECONDS
    )
    return done.stdout
