"""The stand-in device must give the CPU's numbers and CUDA's refusals."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from stand_in import StandIn, StandInTensor, stand_in_device
from torch import Tensor
from torch.utils._pytree import tree_leaves

Case = Callable[[torch.device], Any]


# Inference mode hands composite operations over whole, which is a path of its own.
@pytest.fixture(params=[torch.no_grad, torch.inference_mode, torch.enable_grad])
def gpu(request: pytest.FixtureRequest) -> Iterator[StandIn]:
    with request.param(), StandIn() as stand_in:
        yield stand_in


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def matrix(device: torch.device, rows: int = 5, columns: int = 3) -> Tensor:
    return torch.randn(rows, columns, generator=seeded()).to(device)


def spd(device: torch.device) -> Tensor:
    return matrix(device).T @ matrix(device) + torch.eye(3, device=device)


def bytes_of(device: torch.device) -> Tensor:
    return torch.randint(-9, 9, (24, 16), generator=seeded()).to(device, torch.int8)


def index(device: torch.device, *rows: int) -> Tensor:
    return torch.tensor(rows, device=device)


def changed(tensor: Tensor, change: Callable[[Tensor], object]) -> Tensor:
    """Return the tensor after an in-place change, however deep in a view the change was made."""
    change(tensor)
    return tensor


def assign(key: Any, value: Any) -> Callable[[Tensor], object]:
    return lambda tensor: tensor.__setitem__(key, value)


def buffer(device: torch.device, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


CASES: dict[str, Case] = {
    # factories
    "zeros": lambda d: torch.zeros(2, 3, device=d),
    "ones": lambda d: torch.ones(3, dtype=torch.float64, device=d),
    "full": lambda d: torch.full((2,), 3.5, device=d),
    "arange": lambda d: torch.arange(2, 9, 2, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 5, device=d),
    "eye": lambda d: torch.eye(3, device=d),
    "tensor": lambda d: torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=d),
    "tensor of a scalar": lambda d: torch.tensor(2.5, device=d),
    "as_tensor of a list": lambda d: torch.as_tensor([1, 2], device=d),
    "as_tensor of an array": lambda d: torch.as_tensor(np.arange(3.0), device=d),
    "as_tensor of a tensor": lambda d: torch.as_tensor(torch.arange(3), device=d),
    "randn with a generator": lambda d: torch.randn(4, generator=seeded(), device=d),
    "rand with a generator": lambda d: torch.rand(4, generator=seeded(), device=d),
    "randint with a generator": lambda d: torch.randint(9, (4,), generator=seeded(), device=d),
    "randperm with a generator": lambda d: torch.randperm(6, generator=seeded(), device=d),
    "normal_ with a generator": lambda d: buffer(d, 4).normal_(generator=seeded()),
    "new_zeros": lambda d: matrix(d).new_zeros(2, 2),
    "new_full": lambda d: matrix(d).new_full((2,), 4),
    "new_ones": lambda d: matrix(d).new_ones(2),
    "new_tensor": lambda d: matrix(d).new_tensor([1.0, 2.0]),
    "zeros_like": lambda d: torch.zeros_like(matrix(d)),
    "full_like": lambda d: torch.full_like(matrix(d), 2),
    # dtypes and moves
    "double": lambda d: matrix(d).double(),
    "float": lambda d: matrix(d).double().float(),
    "half": lambda d: matrix(d).half(),
    "to float64": lambda d: matrix(d).to(torch.float64),
    "to int8": lambda d: (matrix(d) * 9).to(torch.int8),
    "to device and dtype": lambda d: torch.ones(3).to(d, torch.float64, non_blocking=True),
    "to another tensor": lambda d: torch.ones(3).to(matrix(d).double()),
    "clone": lambda d: matrix(d).clone(),
    "deepcopy": lambda d: copy.deepcopy(matrix(d)),
    # shapes
    "t": lambda d: matrix(d).t(),
    "T": lambda d: matrix(d).T,
    "contiguous": lambda d: matrix(d).T.contiguous(),
    "view": lambda d: matrix(d).view(3, 5),
    "reshape": lambda d: matrix(d).T.reshape(5, 3),
    "expand": lambda d: matrix(d)[:1].expand(4, 3),
    "broadcasting": lambda d: matrix(d)[:, None] - matrix(d)[None],
    "iteration": lambda d: list(matrix(d)),
    "stack": lambda d: torch.stack([matrix(d), matrix(d)]),
    "cat": lambda d: torch.cat([matrix(d), matrix(d)]),
    "cat out": lambda d: torch.cat([matrix(d), matrix(d)], out=buffer(d, 10, 3)),
    # indexing
    "row": lambda d: matrix(d)[2],
    "slice": lambda d: matrix(d)[1:4, ::2],
    "index": lambda d: matrix(d)[index(d, 3, 0)],
    "CPU index": lambda d: matrix(d)[torch.tensor([3, 0])],
    "CPU 0-dim index": lambda d: matrix(d)[torch.tensor(3)],
    "CPU mask": lambda d: matrix(d)[torch.tensor([True, False, True, False, True])],
    "list index": lambda d: matrix(d)[:, [2, 0]],
    "mask": lambda d: matrix(d)[matrix(d) > 0],
    "set a row": lambda d: changed(matrix(d), assign(2, 0.5)),
    "set a slice": lambda d: changed(matrix(d), assign(slice(2, 4), matrix(d, 2))),
    "set a slice from the CPU": lambda d: changed(matrix(d), assign(slice(2, 4), torch.ones(2, 3))),
    "set by index": lambda d: changed(matrix(d), assign(index(d, 3, 0), matrix(d, 2))),
    "set by CPU index": lambda d: changed(matrix(d), assign(torch.tensor([3, 0]), 1.0)),
    "set by mask": lambda d: changed(matrix(d), assign(matrix(d) > 0, 0.0)),
    "index_select": lambda d: matrix(d).index_select(0, index(d, 3, 0)),
    "index_select out": lambda d: torch.index_select(matrix(d), 0, index(d, 3, 0), out=buffer(d, 2, 3)),
    "index_add_": lambda d: matrix(d).index_add_(0, index(d, 3, 3), matrix(d, 2)),
    "index_copy_": lambda d: matrix(d).index_copy_(0, index(d, 3, 0), matrix(d, 2)),
    "gather": lambda d: matrix(d).gather(1, index(d, 2, 0)[:, None]),
    "where": lambda d: torch.where(matrix(d) > 0, matrix(d), 0.0),
    "nonzero": lambda d: (matrix(d) > 0).nonzero(),
    # elementwise
    "arithmetic": lambda d: (2 * matrix(d) + 1 - matrix(d)) / matrix(d).abs(),
    "CPU 0-dim scalar": lambda d: torch.tensor(2.0) * matrix(d) + torch.tensor(1.0),
    "CPU 0-dim scalar in place": lambda d: matrix(d).mul_(torch.tensor(2.0)),
    "CPU 0-dim fill": lambda d: matrix(d).masked_fill_(matrix(d) > 0, torch.tensor(2.0)),
    "CPU 0-dim scalar in where out": lambda d: torch.where(
        matrix(d) > 0, matrix(d), torch.tensor(2.0), out=buffer(d, 5, 3)
    ),
    "numpy scalar": lambda d: np.float64(2) * matrix(d) * np.float64(3),
    "exp out": lambda d: torch.exp(matrix(d), out=buffer(d, 5, 3)),
    "exp out, grown": lambda d: torch.exp(matrix(d), out=buffer(d, 0)),
    "exp_": lambda d: matrix(d).exp_(),
    "clamp_": lambda d: matrix(d).clamp_(min=0),
    "sqrt_": lambda d: matrix(d).abs_().sqrt_(),
    "fill_diagonal_": lambda d: matrix(d).fill_diagonal_(0),
    "zero a diagonal": lambda d: changed(matrix(d), lambda x: x.diagonal().zero_()),
    "scale a slice": lambda d: changed(matrix(d), lambda x: x[2:4].mul_(2)),
    "add to a column": lambda d: changed(matrix(d), lambda x: x[:, 1].add_(1)),
    "augmented slice": lambda d: changed(matrix(d), lambda x: x[1:3].__iadd__(1)),
    "t_": lambda d: matrix(d).t_(),
    # products
    "matmul": lambda d: matrix(d) @ matrix(d).T,
    "mm out": lambda d: torch.mm(matrix(d), matrix(d).T, out=buffer(d, 5, 5)),
    "mm out into a slice": lambda d: changed(
        torch.zeros(9, 5, device=d), lambda x: torch.mm(matrix(d), matrix(d).T, out=x[2:7])
    ),
    "addmm_": lambda d: spd(d).addmm_(matrix(d).T, matrix(d), beta=0.5, alpha=2),
    "addmm out": lambda d: torch.addmm(spd(d), spd(d), spd(d), out=buffer(d, 3, 3)),
    "baddbmm": lambda d: torch.baddbmm(*[spd(d).expand(2, 3, 3)] * 3, alpha=-2),
    "einsum": lambda d: torch.einsum("ij,kj->ik", matrix(d), matrix(d)),
    "int mm": lambda d: torch._int_mm(bytes_of(d), bytes_of(d).T),
    "int mm out": lambda d: torch._int_mm(
        bytes_of(d), bytes_of(d).T, out=buffer(d, 24, 24, dtype=torch.int32)
    ),
    "cdist": lambda d: torch.cdist(matrix(d), matrix(d, 4)),
    "cdist of many": lambda d: torch.cdist(matrix(d, 40), matrix(d, 30)),
    # linear algebra
    "eigh": lambda d: torch.linalg.eigh(spd(d)),
    "qr": lambda d: torch.linalg.qr(matrix(d)),
    "cholesky": lambda d: torch.linalg.cholesky(spd(d)),
    "svd": lambda d: torch.linalg.svd(matrix(d), full_matrices=False),
    "solve_triangular": lambda d: torch.linalg.solve_triangular(
        torch.linalg.cholesky(spd(d)), spd(d), upper=False
    ),
    "norm": lambda d: torch.linalg.norm(matrix(d)),
    "norm of rows": lambda d: torch.linalg.norm(matrix(d), dim=1),
    "vector_norm out": lambda d: torch.linalg.vector_norm(matrix(d), dim=1, out=buffer(d, 5)),
    # reductions and order
    "sum": lambda d: matrix(d).sum(0),
    "amax": lambda d: matrix(d).amax(),
    "max": lambda d: matrix(d).max(),
    "max of rows": lambda d: matrix(d).max(dim=1),
    "topk": lambda d: torch.topk(matrix(d), 2),
    "sort": lambda d: torch.sort(matrix(d), dim=0),
    "bincount": lambda d: torch.bincount(index(d, 1, 3, 3), minlength=6),
    "quantile": lambda d: torch.quantile(matrix(d), 0.3),
    "quantiles": lambda d: torch.quantile(matrix(d), torch.tensor([0.3, 0.7], device=d), dim=0),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_an_operation_stays_on_the_device_and_gives_the_numbers_of_the_cpu(
    gpu: StandIn, case: Case
) -> None:
    expected = tree_leaves(case(torch.device("cpu")))
    assert not gpu.operations
    results = tree_leaves(case(gpu.device))
    assert gpu.operations
    assert len(results) == len(expected)
    for result, numbers in zip(results, expected, strict=True):
        assert type(numbers) is Tensor
        assert isinstance(result, StandInTensor)
        assert (result.device, result.dtype) == (gpu.device, numbers.dtype)
        assert (result.shape, result.stride()) == (numbers.shape, numbers.stride())
        assert type(result.cpu()) is Tensor
        torch.testing.assert_close(result.cpu(), numbers, rtol=0, atol=0)


REFUSED: dict[str, tuple[str, Callable[[Tensor, Tensor], object]]] = {
    "mm": ("mm", lambda x, c: torch.mm(x, c.T)),
    "matmul": ("mm", lambda x, c: c @ x.T),
    "einsum": ("bmm", lambda x, c: torch.einsum("ij,kj->ik", x, c)),
    "cdist": ("_cdist_forward", torch.cdist),
    "add": ("add", lambda x, c: x + c),
    "add in place": ("add_", lambda x, c: x.add_(c)),
    "add onto the CPU": ("add_", lambda x, c: c.add_(x)),
    "add a 0-dim device tensor to the CPU": ("add", lambda x, c: c + x[0, 0]),
    "add onto a 0-dim CPU tensor": ("add_", lambda x, c: c[0, 0].add_(x[0, 0])),
    "add a CPU row of one": ("add", lambda x, c: x + c[0, :1]),
    "where": ("where", lambda x, c: torch.where(c > 0, x, 0.0)),
    "cat": ("cat", lambda x, c: torch.cat([x, c])),
    "stack": ("stack", lambda x, c: torch.stack([x, c])),
    "equal": ("equal", torch.equal),
    "index_copy_": ("index_copy_", lambda x, c: x.index_copy_(0, index(x.device, 0, 1), c[:2])),
    "index_select by a CPU index": (
        "index_select",
        lambda x, c: x.index_select(0, index(c.device, 0)),
    ),
    "gather by a CPU index": ("gather", lambda x, c: x.gather(1, index(c.device, 0)[:, None])),
    "index the CPU by a device index": ("index", lambda x, c: c[index(x.device, 0, 1)]),
    "set CPU rows by index": (
        "index_put_",
        lambda x, c: x.__setitem__(index(x.device, 0, 1), c[:2]),
    ),
    "out on the CPU": ("exp", lambda x, c: torch.exp(x, out=c)),
    "0-dim out on the CPU": ("exp", lambda x, c: torch.exp(x[0, 0], out=c[0, 0])),
    "out on the device": ("mm", lambda x, c: torch.mm(c.T, c, out=x[:3])),
    "masked_fill by a CPU mask": ("masked_fill", lambda x, c: x.masked_fill(c > 0, 0.0)),
    "solve_triangular": (
        "linalg_solve_triangular",
        lambda x, c: torch.linalg.solve_triangular(x[:3], c[:3], upper=True),
    ),
}


@pytest.mark.parametrize(("name", "mix"), REFUSED.values(), ids=REFUSED.keys())
def test_mixing_with_the_cpu_is_refused_by_the_name_of_the_operation(
    gpu: StandIn, name: str, mix: Callable[[Tensor, Tensor], object]
) -> None:
    x, c = matrix(gpu.device), matrix(torch.device("cpu"))
    before = c.clone()
    with pytest.raises(RuntimeError, match=rf"^aten\.{name}\.\w+ expects all tensors on one dev"):
        mix(x, c)
    assert torch.equal(x.cpu(), before)
    assert torch.equal(c, before)


def test_a_second_device_does_not_exist(gpu: StandIn) -> None:
    with pytest.raises(RuntimeError, match="the only device is cuda:0"):
        torch.ones(3, device="cuda:1")


def test_views_share_memory_with_their_base(gpu: StandIn) -> None:
    x = torch.zeros(4, 3, device=gpu.device)
    views = (x[1:3], x.T, x.view(12), x.reshape(3, 4), x.diagonal(), x.expand(2, 4, 3), x.detach())
    x[1:3].view(6)[2:].add_(5)
    assert x.cpu().sum() == 20
    assert [int(view.sum()) for view in views] == [20, 20, 20, 20, 5, 40, 20]
    assert x[1:].data_ptr() == x.data_ptr() + 3 * x.element_size()


def test_moves_copy_between_devices_but_not_within_one(gpu: StandIn) -> None:
    numbers = np.zeros(3)
    c = torch.from_numpy(numbers)
    x = c.to(gpu.device)
    for moved in (x, torch.as_tensor(numbers, device=gpu.device), c.to("cuda"), c.cuda()):
        moved.fill_(1)
    back = x.cpu()
    back.fill_(2)
    assert (c.tolist(), x.tolist(), back.tolist()) == ([0] * 3, [1] * 3, [2] * 3)
    assert x.to(gpu.device) is x
    assert x.to(gpu.device, torch.float64) is x
    assert x.contiguous() is x


def test_copy_runs_between_devices_both_ways(gpu: StandIn) -> None:
    x, c = torch.zeros(2, 3, device=gpu.device), torch.arange(6.0).view(2, 3)
    assert x.copy_(c) is x
    assert torch.equal(x.cpu(), c)
    c.zero_()
    assert c.copy_(x) is c
    c[0] = x[1]
    assert type(c) is Tensor
    assert c.tolist() == [[3, 4, 5], [3, 4, 5]]


def test_in_place_and_out_return_the_very_tensor_they_were_given(gpu: StandIn) -> None:
    x, empty = matrix(gpu.device), torch.empty(0, device=gpu.device)
    assert x.exp_() is x
    assert torch.ops.aten.exp_(x) is x
    assert torch.exp(x, out=empty) is empty
    assert empty.shape == x.shape
    assert torch.equal(empty, x.exp())


def test_python_reads_values_as_from_any_tensor(gpu: StandIn) -> None:
    x = torch.arange(6.0, device=gpu.device).view(2, 3)
    assert bool(x.isfinite().all())
    assert float(x.sum()) == x.sum().item() == 15
    assert (int(x[1, 2]), len(x), x.tolist()) == (5, 2, [[0, 1, 2], [3, 4, 5]])
    assert f"{x[1, 1]:.2f}" == "4.00"
    assert x.is_floating_point()
    assert not x.long().is_floating_point()
    assert (x.device, x.device.type, x.is_cuda, x.is_cpu) == (gpu.device, "cuda", True, False)
    assert "cuda:0" in repr(x)
    assert 3.0 in x[1]


def test_numpy_is_refused_as_on_cuda(gpu: StandIn) -> None:
    x = torch.ones(3, device=gpu.device)
    for convert in (x.numpy, lambda: np.asarray(x), lambda: np.array(x), lambda: np.sum(np.abs(x))):
        with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
            convert()
    assert x.cpu().numpy().tolist() == x.numpy(force=True).tolist() == [1, 1, 1]


def test_factories_without_a_generator_follow_the_cpu_seed(gpu: StandIn) -> None:
    for make in (torch.randn, torch.rand, torch.randperm):
        torch.manual_seed(3)
        expected = make(5)
        torch.manual_seed(3)
        assert torch.equal(make(5, device=gpu.device).cpu(), expected)


def test_uninitialised_factories_land_on_the_device(gpu: StandIn) -> None:
    x = torch.empty(2, 3, dtype=torch.float64, device=gpu.device)
    like = (torch.empty_like(x), x.new_empty(2, 3), torch.empty_like(x.cpu(), device=gpu.device))
    assert {(y.device, y.dtype, y.shape) for y in like} == {(x.device, x.dtype, x.shape)}
    assert type(torch.empty_like(x, device="cpu")) is Tensor


def test_the_cpu_is_untouched_and_uncounted_inside_the_mode(gpu: StandIn) -> None:
    c = torch.randn(5, 3)
    c[1:].mul_(2)
    assert type(torch.mm(c, c.T)) is type(torch.tensor([1.0])) is Tensor
    assert np.asarray(c).shape == c.numpy().shape == (5, 3)
    assert not gpu.operations


def test_gradients_on_the_cpu_still_run_inside_the_mode() -> None:
    with stand_in_device():
        w = torch.ones(3, requires_grad=True)
        assert torch.autograd.grad((w * w).sum(), w)[0].tolist() == [2, 2, 2]


def test_operations_on_the_device_are_counted_by_name(gpu: StandIn) -> None:
    x = torch.ones(5, 3).to(gpu.device)
    torch.mm(x, x.T, out=torch.empty(5, 5, device=gpu.device))
    torch.mm(x, x.T)
    torch.linalg.eigh(x.T @ x)
    x.exp_()
    counted = {name: gpu.operations[name] for name in ("mm", "_linalg_eigh", "exp_", "_to_copy")}
    assert counted == {"mm": 3, "_linalg_eigh": 1, "exp_": 1, "_to_copy": 1}


def test_a_refused_operation_is_not_counted(gpu: StandIn) -> None:
    x = torch.ones(3, device=gpu.device)
    with pytest.raises(RuntimeError):
        x.add(torch.ones(3))
    assert gpu.operations["add"] == 0


def test_leaving_restores_torch_and_leaves_the_tensors_usable() -> None:
    before = torch.cuda._lazy_init, torch._C._only_lift_cpu_tensors()
    with stand_in_device() as device:
        x = torch.ones(3, device=device)
        assert torch.cuda._lazy_init is not before[0]
    assert (torch.cuda._lazy_init, torch._C._only_lift_cpu_tensors()) == before
    assert not torch.cuda.is_available()
    assert (x[1:] + 1).cpu().tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="one device"):
        x + torch.ones(3)
    with pytest.raises((RuntimeError, AssertionError)):
        torch.ones(3, device=device)
