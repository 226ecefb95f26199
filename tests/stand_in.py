"""A stand-in for a GPU: real CPU numbers behind tensors that say they live on ``cuda:0``.

Why it exists: code written device-free breaks on a GPU mostly in one way, by mixing a tensor made
on the CPU with one that lives on the device, and a machine without a GPU never shows it. Inside
``stand_in_device()`` every tensor made on, or moved to, ``cuda:0`` is a ``StandInTensor``: it
computes with the CPU kernels, so its numbers are those of the CPU, but it keeps CUDA's manners.

    with stand_in_device() as device:
        x = torch.randn(5, 3).to(device)
        y = (x @ x.T).cpu()

    with StandIn() as gpu:                  # the same, with a count of the operations that ran
        torch.ones(3, device=gpu.device).exp_()
        assert gpu.operations["exp_"] == 1

What it refuses, with a RuntimeError that names the operation: a stand-in tensor and a CPU tensor
in one operation, ``out=`` included. What it lets through, because CUDA does: ``copy_`` (and so
``x[2:4] = cpu_tensor``), 0-dim CPU tensors as scalars in elementwise operations and as the value
of a fill, and CPU index tensors in ``x[index]``. Converting to numpy raises TypeError, as on CUDA.

The label is ``cuda:0`` even where torch is built without CUDA, so that code which asks
``device.type == "cuda"`` takes its GPU path. torch then misses three things, given here: a CUDA
device guard (see ``_give_cuda_a_guard``), ``torch.tensor(..., device=)`` going through the
dispatcher, and a ``torch.cuda._lazy_init`` that does not raise while the mode is active. No other
``torch.cuda`` function is touched: a test patches those its library calls.

``operations`` counts by aten name the operations that ran on the stand-in, factories, transfers
and views included, and composite ones as their parts: ``torch.linalg.eigh`` counts as
``_linalg_eigh``, ``x.to(device)`` and ``x.cpu()`` as ``_to_copy``.

What it does not do: autograd's backward, ``nn.Module.to(device)``, pinned memory, storages,
``torch.tensor([x[0], x[1]])`` over stand-in scalars, factories in threads other than its own, and
CUDA's own limits on shapes and dtypes (``torch._int_mm`` on CUDA wants multiples of 8).
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only
from typing_extensions import Self

# torch leaves the base classes and hooks overridden here untyped, or types them too narrowly.
# mypy: disable-error-code="no-untyped-call, override, assignment"

CPU = torch.device("cpu")


class StandInTensor(torch.Tensor):
    """A tensor labelled with the stand-in device; ``held`` is the CPU tensor with its numbers."""

    held: torch.Tensor
    home: StandIn

    # Without this, torch would turn every result, x.cpu() included, into this class.
    __torch_function__ = torch._C._disabled_torch_function_impl

    def __new__(cls, held: torch.Tensor, home: StandIn) -> Self:
        tensor: Self = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=home.device,
        )
        tensor.held, tensor.home = held, home
        return tensor

    @classmethod
    def __torch_dispatch__(
        cls, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # Reached when the mode is not active: after its block, or in another thread.
        leaves = tree_leaves((args, kwargs))
        home = next(leaf.home for leaf in leaves if isinstance(leaf, StandInTensor))
        return home.run(func, args, kwargs or {})

    # torch answers the following without the dispatcher, and not as it would for a CUDA tensor.

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.cpu().numpy()
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.numpy()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return memo.setdefault(id(self), self.clone())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"StandInTensor({self.held!r}, device='{self.device}')"


class StandIn(TorchDispatchMode):
    """The stand-in device while its ``with`` block lasts, and the count of what ran on it."""

    def __init__(self) -> None:
        super().__init__()
        _give_cuda_a_guard()
        self.device = torch.device("cuda:0")
        self.operations: Counter[str] = Counter()
        self._saved: list[tuple[Callable[[], None], bool]] = []

    def __enter__(self) -> Self:
        self._saved.append((torch.cuda._lazy_init, torch._C._only_lift_cpu_tensors()))
        torch.cuda._lazy_init = lambda: None
        torch._C._set_only_lift_cpu_tensors(True)
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        torch.cuda._lazy_init, lifting = self._saved.pop()
        torch._C._set_only_lift_cpu_tensors(lifting)

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation: on the CPU as it is, or on the stand-in if it belongs there."""
        leaves = tree_leaves((args, kwargs))
        residents = [leaf for leaf in leaves if isinstance(leaf, StandInTensor)]
        # Where the result goes: to the device the call names, else where its arguments are.
        target = next(
            (leaf for leaf in leaves if isinstance(leaf, torch.device)),
            self.device if residents else CPU,
        )
        if not residents and target.type != self.device.type:
            return func(*args, **kwargs)
        if target.type == self.device.type and target.index not in (None, self.device.index):
            raise RuntimeError(f"{func} asks for {target}, but the only device is {self.device}.")

        # CUDA runs a composite operation as its parts, so the parts decide what may mix.
        with self:
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result

        if residents:
            _refuse_mixing(func, args, kwargs)
        self.operations[func.overloadpacket.__name__] += 1
        held_args, held_kwargs = tree_map(_as_held, (args, kwargs))
        result = func(*held_args, **held_kwargs)
        for tensor in residents:
            # resize_, t_ and out= may reshape the numbers; the label has a shape of its own.
            if (tensor.shape, tensor.stride()) != (tensor.held.shape, tensor.held.stride()):
                tensor.data = StandInTensor(tensor.held, self)

        # An in-place or out= operation returns its argument, which must stay the same object.
        given = {id(_as_held(leaf)): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}

        def hand_back(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) in given:
                return given[id(tensor)]
            return StandInTensor(tensor, self) if target.type == self.device.type else tensor

        return tree_map_only(torch.Tensor, hand_back, result)


@contextmanager
def stand_in_device() -> Iterator[torch.device]:
    """Make a stand-in device for the length of a ``with`` block."""
    with StandIn() as stand_in:
        yield stand_in.device


def _as_held(leaf: Any) -> Any:
    if isinstance(leaf, StandInTensor):
        return leaf.held
    return CPU if isinstance(leaf, torch.device) else leaf


def _refuse_mixing(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    name = func.overloadpacket.__name__
    if name == "copy_":
        return
    elementwise = torch.Tag.pointwise in func.tags or name == "where"
    indexing = name in ("index", "index_put", "index_put_", "_index_put_impl_")
    for position, argument in enumerate(func._schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        written = argument.alias_info is not None and argument.alias_info.is_write
        scalar = not written and (elementwise or argument.name in ("value", "values"))
        for tensor in tree_leaves(value):
            if not isinstance(tensor, torch.Tensor) or isinstance(tensor, StandInTensor):
                continue
            if (scalar and tensor.dim() == 0) or (indexing and argument.name == "indices"):
                continue
            raise RuntimeError(
                f"{func} expects all tensors on one device, but was given '{argument.name}' of "
                f"shape {tuple(tensor.shape)} on {tensor.device} with tensors on the stand-in."
            )


def _give_cuda_a_guard() -> None:
    """Have torch set its own do-nothing CUDA device guard, without which slicing raises."""
    library = ctypes.CDLL(torch._C.__file__)
    guards = (ctypes.c_void_p * 2).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    if guards[1]:  # 1 is CUDA: a build with CUDA, or an earlier stand-in
        torch._C._ensureCUDADeviceGuardSet()
        return
    # torch does so only where a CUDA guard counts no devices, and a build without CUDA has no
    # guard to ask. So lend it, for that one call, a C++ object all of whose methods return 0.
    zero = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
    methods = (ctypes.c_void_p * 64)(*[ctypes.cast(zero, ctypes.c_void_p).value] * 64)
    lent = ctypes.c_void_p(ctypes.addressof(methods))
    guards[1] = ctypes.addressof(lent)
    torch._C._ensureCUDADeviceGuardSet()
    if guards[1] == ctypes.addressof(lent):
        guards[1] = None
        raise RuntimeError(f"torch {torch.__version__} accepts no stand-in for a CUDA device.")
