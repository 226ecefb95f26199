"""Operations counted while the code runs: every matrix product and every kernel value of an epoch."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from mercer import Epoch
from mercer.engine import Training, Watcher

PRODUCTS = ("mm", "addmm", "_int_mm")
VECTOR_PRODUCTS = ("mv", "addmv")
# Not used by the engine.  They raise an error, since a count without them would be wrong.
OTHER_PRODUCTS = ("bmm", "baddbmm", "dot", "vdot", "addbmm", "addr")


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts multiply-adds of all matrix products, and exponentials, one per kernel value."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.start_again()

    def start_again(self) -> None:
        self.multiply_adds, self.evaluations = 0, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__.rstrip("_")
        if name in PRODUCTS:
            a, b = args[-2:]
            self.multiply_adds += a.shape[0] * a.shape[1] * b.shape[1]
        elif name in VECTOR_PRODUCTS:
            self.multiply_adds += args[-2].numel()
        elif name in OTHER_PRODUCTS:
            raise NotImplementedError(f"Counting the operations of {name} is not implemented.")
        elif name in ("exp", "exp2"):
            self.evaluations += args[0].numel()
        return func(*args, **(kwargs or {}))


class SecondEpoch(Watcher):
    """Resets the counter after the first epoch."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter

    def on_epoch(self, epoch: Epoch, training: Training) -> str | None:
        if epoch.number == 1:
            self.counter.start_again()
        return None
