"""What a device offers: parallel capacity C_G, memory S_G, and the batch size m_G they allow.

One iteration of the method costs (d + l) m n operations.  The paper's model of a resource G is that
an iteration takes constant time until it has C_G operations in flight, so that

    m_C solves  (d + l) m n = C_G                        all parallel units busy
    m_S solves  (d + 2 l + c m) n + s q = S_G            memory full, c copies of the m x n block
    m_G = min(m_C, m_S)

(the paper writes d + l and c = 1; its implementation keeps weights and targets, l each, and c = 3). C_G
alone would make the batch shrink as 1/n without end.  On real devices a product with few rows is bound
by memory traffic however long it is, so a second measured number, `full_rate_rows`, bounds m_C from
below.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import torch

from mercer.operators.fixed_point import CODE_BYTES
from mercer.planning.memory import GIB

__all__ = ["GIB", "PAPER_COMPONENTS", "READ_OUTPUTS", "Rates", "Resource", "find_device", "with_memory"]

# Outputs up to which a product with kept values is bound by reading them; each further one takes as long
# as a feature does.
READ_OUTPUTS = 16
# The paper's implementation allows for a preconditioner of this many components.
PAPER_COMPONENTS = 1000


@dataclass(frozen=True)
class Rates:
    """Seconds that work takes on a device: what a rehearsal of a run is too short to tell."""

    feature: float  # one multiplication and addition in the product of a tile
    write: float  # one byte of fresh memory
    read: float  # one byte of kept values in a product with the weights of one output
    read_two: float  # the same with two, a matrix product
    read_output: float  # what each further output adds to that, up to `READ_OUTPUTS`
    code: float  # the same three for values that are kept in 16 bits
    code_two: float
    code_output: float

    def reading(self, outputs: int, value_bytes: int) -> float:
        """One byte of kept values in a product with the weights of so many outputs."""
        one, two, output = self.read, self.read_two, self.read_output
        if value_bytes == CODE_BYTES:
            one, two, output = self.code, self.code_two, self.code_output
        if outputs == 1:
            return one
        few, more = min(outputs, READ_OUTPUTS) - 2, max(0, outputs - READ_OUTPUTS)
        return two + few * output + more * self.feature / value_bytes


@dataclass(frozen=True)
class Resource:
    """A device as the method sees it.  Measure one with `measure_resource`, or specify one.

    >>> titan = Resource(capacity=float("inf"), memory=12 * GIB, reserved=0.6 * GIB, block_copies=3)
    >>> titan.memory_batch(n=1_100_000, d=440, l=144, preconditioner=12_000 * PAPER_COMPONENTS)
    681
    """

    capacity: float  # C_G: operations in flight that saturate the device
    memory: float  # S_G in bytes, before `reserved`
    device: str = "cpu"
    reserved: float = 0.0  # bytes of `memory` not to be used
    block_copies: float = 1.0  # m x n buffers alive at once
    full_rate_rows: int = 1  # fewest rows at which a long product runs at full rate
    integer_gain: float = 0.0  # rate of 8-bit products over that of float ones; 0 where there are none
    element_size: int = 4
    rates: Rates | None = None
    name: str = "user-specified device"
    ranks: int = 1  # processes whose devices these are together

    def __post_init__(self) -> None:
        for field in ("capacity", "memory"):
            value = getattr(self, field)
            if not value > 0:
                raise ValueError(f"`{field}` must be positive. Got {value!r} instead.")

    @property
    def usable(self) -> float:
        """Bytes of `memory` that may be used."""
        return self.memory - self.reserved

    @property
    def usable_each(self) -> float:
        """Bytes that each rank may use."""
        return self.usable / self.ranks

    def capacity_batch(self, n: int, d: int, l: int) -> float:
        """m_C, the batch that keeps every parallel unit busy; may be infinite."""
        return max(float(self.full_rate_rows), self.capacity / ((d + l) * n))

    def memory_batch(self, n: int, d: int, l: int, preconditioner: int = 0) -> int:
        """m_S, the batch whose kernel block fits; 0 where the data alone does not."""
        floats = self.usable / self.element_size - preconditioner
        return max(0, int((floats / n - d - 2 * l) / self.block_copies))

    def batch(self, n: int, d: int, l: int, preconditioner: int = 0) -> int:
        """m_G, at least 1."""
        return max(1, int(min(self.capacity_batch(n, d, l), self.memory_batch(n, d, l, preconditioner))))


def find_device(device: str | torch.device) -> torch.device:
    """The torch device for "auto", "cpu", "cuda", "cuda:1" or "mps"; refuses one that is not there."""
    if str(device) == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", _gpu_of_rank())
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ValueError(
            f'`device` must be "auto" or a device PyTorch knows, such as "cpu", "cuda:0" or "mps". '
            f"Got {device!r} instead."
        ) from error
    try:
        torch.zeros(1, device=found).item()  # a device without memory, such as "meta", has no numbers
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"`device` must be present on this machine. Got {device!r} instead, which PyTorch cannot "
            'compute on: use device="auto", or install a build of PyTorch for it.'
        ) from error
    return found


def _gpu_of_rank() -> int:
    """The GPU of this process: for the k-th rank of a machine the k-th, unless another was chosen.

    A launcher that shows each rank only its own GPU, or a script that calls `torch.cuda.set_device`, has
    chosen.
    """
    current, local = torch.cuda.current_device(), os.environ.get("LOCAL_RANK", "")
    chosen = current != 0 or not local.isdecimal() or int(local) >= torch.cuda.device_count()
    return current if chosen else int(local)


def with_memory(resource: Resource, memory: float | None) -> Resource:
    """The same device with a user-specified memory limit, of each rank if there are several."""
    if memory is None:
        return resource
    return replace(resource, memory=resource.ranks * memory, reserved=0.0)
