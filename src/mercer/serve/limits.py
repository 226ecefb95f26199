"""How much a client may ask for, and how much may be in work at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mercer.serve.faults import Fault

# Bodies of the largest size that may be in memory at a time.
BODIES_AT_ONCE = 4
# Seconds after which a client that was turned away may try again.
RETRY_SECONDS = 1


@dataclass(frozen=True)
class Limits:
    """Limits of one server."""

    body: int = 16_000_000  # bytes of a request
    rows: int = 100_000  # rows of a request
    seconds: float = 30.0  # from the last byte of a request to its answer
    client_seconds: float = 30.0  # that a client may take to send a request
    queue: int = 256  # requests in work, the one that is predicted among them
    connections: int = 512  # open at a time


def too_busy(what: str) -> Fault:
    return Fault(429, f"{what}. Try again in a second.", retry=RETRY_SECONDS)


@dataclass
class Admission:
    """Counts what is in work; owned by the event loop, so that nothing else changes it."""

    limits: Limits
    requests: int = 0
    bytes: int = 0

    @contextmanager
    def request(self) -> Iterator[Held]:
        """In the block one more request is in work; raise if there are too many."""
        if self.requests >= self.limits.queue:
            raise too_busy(f"{self.requests:,} requests are waiting, which is as many as may")
        self.requests += 1
        held = Held(self)
        try:
            yield held
        finally:
            self.requests -= 1
            self.bytes -= held.bytes


@dataclass
class Held:
    """The bytes that one request holds."""

    admission: Admission
    bytes: int = 0

    def add(self, count: int) -> None:
        """Raise if the request, or all of them together, have too many bytes."""
        limits, whole = self.admission.limits, self.admission
        if self.bytes + count > limits.body:
            raise too_large(limits)
        if whole.bytes + count > BODIES_AT_ONCE * limits.body:
            raise too_busy("The requests in work take as much memory as they may")
        self.bytes += count
        whole.bytes += count


def too_large(limits: Limits) -> Fault:
    return Fault(413, f"The body may have at most {limits.body:,} bytes. Send fewer rows at a time.")
