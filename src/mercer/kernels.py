"""Kernels k(x, z), as profiles of a squared distance, and the one place where distances are made.

A kernel is a small frozen record.  `kernel.points(x)` prepares data once (squared norms),
`kernel.block(a, b)` gives the dense matrix of k over two sets of prepared points, and
`kernel.diagonal(a)` gives k(x, x).

Distances come from ||x||² + ||z||² - 2 x·z, one matrix product.  That subtracts large numbers to
get small ones, so three things guard it: callers centre the data when the kernel is translation
invariant, a point's distance to itself is set to 0, and pairs so close that rounding would show
are computed again from x - z.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

# A squared distance below this many units of rounding of ||x||² + ||z||² has lost more than about
# one part in a hundred to cancellation and is computed again.
CANCELLATION_UNITS = 100
# Error of a kernel value that smooth profiles may carry from cancellation.
SMOOTH_TOLERANCE = 2e-6
# exp(u) is 2^(u log2 e).  PyTorch's exp2 takes a third of the time of its exp on a CPU where the latter
# comes from a library made for another maker's, and no more elsewhere; the factor costs nothing.
LOG2_E = math.log2(math.e)
# Beyond this share of close pairs in a block, one pass over all pairs is cheaper than a gather.
GATHER_SHARE = 1 / 16
# Elements of the (pairs, d) difference matrix held at once while close pairs are recomputed.
GATHER_ELEMENTS = 1 << 22
# Up to this many features a squared norm of bytes, at most 2^14 a feature, is a whole number that
# float32 holds exactly, and so is every distance small enough for rounding to show.
EXACT_FEATURES = 1_024
# Values whose squares are held at once while norms are computed.
NORM_ELEMENTS = 1 << 22
# Rows evaluated at a time where only the diagonal of a callable's block is wanted.
DIAGONAL_ROWS = 128


@dataclass(frozen=True)
class Points:
    """Points ready for kernel evaluation; `points[rows]` is a view for a slice of rows.

    Float points lie in memory as rows (x, 1, ||x||²): the product of such a row with the `partner` row
    f (-2 z, ||z||², 1) of another point is f ||x - z||², with no further pass over the result.
    """

    x: Tensor  # (n, d)  floats, or int8 where the data is 8-bit
    squared_norms: Tensor  # (n,)  floats
    bound: float  # on the squared norms
    extended: Tensor | None = None  # (n, d + 2), of which x and squared_norms are views
    # (n,)  squared distance from the space that holds the other points, part of squared_norms
    beyond: Tensor | None = None

    @classmethod
    def extend(cls, x: Tensor) -> Points:
        """Points of float rows x, (n, d), copied once."""
        n, d = x.shape
        extended = x.new_empty(n, d + 2)
        extended[:, :d] = x
        return cls.of_extended(extended)

    @classmethod
    def of_extended(cls, extended: Tensor, beyond: Tensor | None = None) -> Points:
        """Points of rows with room for two numbers after x, (n, d + 2), which are filled in."""
        x, norms = extended[:, :-2], extended[:, -1]
        extended[:, -2] = 1
        for rows in _few_rows(x):
            norms[rows] = x[rows].square().sum(1)
        if beyond is not None:
            norms += beyond
        return cls.of_whole(extended, beyond)

    @classmethod
    def of_whole(cls, extended: Tensor, beyond: Tensor | None = None) -> Points:
        """Points of rows (x, 1, ||x||²) as they are, (n, d + 2)."""
        norms = extended[:, -1]
        bound = float(norms.max()) if len(extended) else 0.0
        return cls(extended[:, :-2], norms, bound, extended, beyond)

    def __len__(self) -> int:
        return self.x.shape[0]

    def __getitem__(self, rows: slice | Tensor) -> Points:
        beyond = None if self.beyond is None else self.beyond[rows]
        if self.extended is None:
            return Points(self.x[rows], self.squared_norms[rows], self.bound, None, beyond)
        extended = self.extended[rows]
        return Points(extended[:, :-2], extended[:, -1], self.bound, extended, beyond)

    def to(self, device: torch.device | str) -> Points:
        beyond = None if self.beyond is None else self.beyond.to(device)
        if self.extended is None:
            return Points(self.x.to(device), self.squared_norms.to(device), self.bound, None, beyond)
        extended = self.extended.to(device)
        return Points(extended[:, :-2], extended[:, -1], self.bound, extended, beyond)

    def __reduce__(self) -> tuple[Any, ...]:  # views would be written out once each
        if self.extended is None:
            return (Points, (self.x, self.squared_norms, self.bound, None, self.beyond))
        return (Points.of_extended, (self.extended, self.beyond))

    def partner(self, factor: float) -> Tensor:
        """f (-2 x, ||x||², 1) for every row, (n, d + 2); remembered, as many tiles share their rows."""
        known: tuple[float, Tensor] | None = self.__dict__.get("_partner")
        if known is None or known[0] != factor:
            norms = factor * self.squared_norms[:, None]
            partner = torch.cat([-2 * factor * self.x, norms, torch.full_like(norms, factor)], 1)
            known = (factor, partner)
            object.__setattr__(self, "_partner", known)
        return known[1]

    @property
    def rows(self) -> Tensor:
        """The points as they lie in memory or in a file: bytes, (n, d), or extended rows, (n, d + 2)."""
        return self.x if self.extended is None else self.extended

    @property
    def dtype(self) -> torch.dtype:
        return self.squared_norms.dtype

    @property
    def is_bytes(self) -> bool:
        return self.x.dtype == torch.int8

    def as_floats(self) -> Points:
        if not self.is_bytes:
            return self
        n, d = self.x.shape
        extended = self.squared_norms.new_empty(n, d + 2)
        extended[:, :d] = self.x
        return Points.of_extended(extended, self.beyond)


def _few_rows(x: Tensor) -> list[slice]:
    """All rows, some at a time."""
    step = max(1, NORM_ELEMENTS // max(1, x.shape[1]))
    return [slice(first, first + step) for first in range(0, len(x), step)]


def squared_distances(
    a: Points,
    b: Points,
    same: bool,
    out: Tensor | None = None,
    factor: float = 1.0,
    tolerance: float = 0.0,
) -> Tensor:
    """`factor` times the squared Euclidean distances of all pairs, (m, t).

    `same` says that a and b are one set.  Close pairs keep their relative accuracy, being computed from
    differences, unless the rounding error of all results is below `tolerance` as it is.
    """
    shape = (len(a), len(b))
    d2 = torch.empty(shape, dtype=a.dtype, device=a.x.device) if out is None else out
    if d2.numel() == 0:
        return d2
    rounding = 2 * torch.finfo(a.dtype).eps * (a.bound + b.bound)
    exact = not abs(factor) * rounding <= tolerance
    if a.is_bytes and b.is_bytes:
        # Sums of products of bytes are exact.  They are made in the memory of the result where it can
        # hold them, since fresh memory is slow.
        fits = d2.is_contiguous() and d2.element_size() == 4
        d2.copy_(torch._int_mm(a.x, b.x.T, out=d2.view(torch.int32) if fits else None))  # (m, t)
        scale = 1.0 if exact else factor  # whole numbers stay whole until they are all added
        torch.add(scale * a.squared_norms[:, None], d2, alpha=-2 * scale, out=d2)
        d2.add_(scale * b.squared_norms[None, :])
        if exact and a.x.shape[1] > EXACT_FEATURES:
            d2.clamp_(min=0)
        if exact:
            return d2.mul_(factor)
        return d2.fill_diagonal_(0) if same else d2
    a, b = a.as_floats(), b.as_floats()
    if a.extended is not None and b.extended is not None:
        torch.mm(a.extended, b.partner(factor).T, out=d2)  # (m, t)
    else:
        torch.add(a.squared_norms[:, None], b.squared_norms[None, :], out=d2)  # (m, t)
        d2.addmm_(a.x, b.x.T, beta=factor, alpha=-2 * factor)  # (m, t)
    if same:
        d2.fill_diagonal_(math.copysign(math.inf, factor))
    if exact:
        _recompute_close_pairs(a, b, d2, factor)
    if same:
        d2.fill_diagonal_(0)
    return d2


def _recompute_close_pairs(a: Points, b: Points, d2: Tensor, factor: float) -> None:
    threshold = CANCELLATION_UNITS * torch.finfo(d2.dtype).eps
    largest = a.bound + b.bound
    closest = (d2.amin() if factor > 0 else d2.amax()) / factor
    if bool(closest >= threshold * largest):  # the usual case, decided by one cheap pass
        return
    limit = factor * threshold * (a.squared_norms[:, None] + b.squared_norms[None, :])  # (m, t)
    close = d2 < limit if factor > 0 else d2 > limit  # (m, t)
    rows, columns = close.nonzero(as_tuple=True)
    if len(rows) > GATHER_SHARE * d2.numel():
        # Euclidean distance by differences, never by a matrix product.
        exact = torch.cdist(a.x, b.x, compute_mode="donot_use_mm_for_euclid_dist").square_()
        if a.beyond is not None:
            exact += a.beyond[:, None]
        if b.beyond is not None:
            exact += b.beyond[None, :]
        d2.copy_(torch.where(torch.isinf(d2), d2, exact.mul_(factor)))
        return
    step = max(1, GATHER_ELEMENTS // max(1, a.x.shape[1]))
    for first in range(0, len(rows), step):
        i, j = rows[first : first + step], columns[first : first + step]
        exact = (a.x[i] - b.x[j]).square().sum(1)
        if a.beyond is not None:
            exact += a.beyond[i]
        if b.beyond is not None:
            exact += b.beyond[j]
        d2[i, j] = factor * exact


def byte_points(codes: Tensor, dtype: torch.dtype, beyond: Tensor | None = None) -> Points:
    """Points for int8 codes, (n, d); their norms are exact, being whole numbers."""
    norms = [codes[rows].to(torch.int32).square_().sum(1) for rows in _few_rows(codes)]
    squared_norms = torch.cat(norms).to(dtype) if norms else codes.new_zeros(0, dtype=dtype)
    if beyond is not None:
        squared_norms += beyond
    return Points(codes, squared_norms, float(squared_norms.max()) if norms else 0.0, None, beyond)


class Kernel(ABC):
    """A positive definite kernel.  Subclasses are frozen dataclasses; see `Gaussian`."""

    name: ClassVar[str]
    #: k(x + c, z + c) == k(x, z), so that data may be centred first.
    translation_invariant: ClassVar[bool] = True

    def points(self, x: Tensor) -> Points:
        """Prepare rows of `x` for `block` and `diagonal`."""
        return Points.extend(x)

    @abstractmethod
    def block(self, a: Points, b: Points, *, same: bool = False, out: Tensor | None = None) -> Tensor:
        """The dense (len(a), len(b)) matrix k(a_i, b_j).  `same`: a and b are the same points."""

    def diagonal(self, a: Points) -> Tensor:
        """k(x, x) for each point, (n,)."""
        return torch.ones_like(a.squared_norms)

    def __call__(self, x: Tensor, z: Tensor) -> Tensor:
        return self.block(self.points(x), self.points(z), same=x is z)

    def to_dict(self) -> dict[str, Any]:
        """The kernel as plain data, for a plan or a file; the inverse is `kernel_from_dict`."""
        return {"name": self.name} | {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def __str__(self) -> str:
        values = [f"{f.name} {getattr(self, f.name):.4g}" for f in fields(self)]  # type: ignore[arg-type]
        return f"{self.name} ({', '.join(values)})" if values else self.name


@dataclass(frozen=True)
class _Radial(Kernel):
    """k(x, z) = p(||x - z||² / bandwidth²) with p(0) = 1."""

    bandwidth: float = 1.0
    #: Error that `_profile_` may get in what it is given: none unless it is smooth at distance 0.
    tolerance: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bandwidth) and self.bandwidth > 0):
            raise ValueError(
                f"`bandwidth` must be a positive, finite number. Got {self.bandwidth!r} instead. "
                'Give the distance over which the function varies, or "auto".'
            )

    @property
    def _factor(self) -> float:
        """What squared distances are multiplied by before the profile, at no cost of its own."""
        return 1 / self.bandwidth**2

    @abstractmethod
    def _profile_(self, u: Tensor) -> Tensor:
        """Overwrite `_factor` times squared distances with kernel values."""

    def block(self, a: Points, b: Points, *, same: bool = False, out: Tensor | None = None) -> Tensor:
        return self._profile_(squared_distances(a, b, same, out, self._factor, self.tolerance))


@dataclass(frozen=True)
class Gaussian(_Radial):
    """exp(-||x - z||² / (2 sigma²)).

    >>> import torch
    >>> Gaussian(bandwidth=1.0)(torch.zeros(1, 2), torch.tensor([[1.0, 1.0]]))
    tensor([[0.3679]])
    """

    name = "gaussian"
    tolerance = SMOOTH_TOLERANCE * LOG2_E

    @property
    def _factor(self) -> float:
        return -0.5 * LOG2_E / self.bandwidth**2

    def _profile_(self, u: Tensor) -> Tensor:
        return u.exp2_()


@dataclass(frozen=True)
class Laplacian(_Radial):
    """exp(-||x - z|| / sigma), the Euclidean norm."""

    name = "laplacian"

    @property
    def _factor(self) -> float:
        return (LOG2_E / self.bandwidth) ** 2

    def _profile_(self, u: Tensor) -> Tensor:
        return u.sqrt_().neg_().exp2_()


@dataclass(frozen=True)
class Cauchy(_Radial):
    """1 / (1 + ||x - z||² / sigma²)."""

    name = "cauchy"
    tolerance = SMOOTH_TOLERANCE

    def _profile_(self, u: Tensor) -> Tensor:
        return u.add_(1).reciprocal_()


@dataclass(frozen=True)
class Matern32(_Radial):
    """(1 + t) exp(-t), t = sqrt(3) ||x - z|| / sigma."""

    name = "matern32"

    def _profile_(self, u: Tensor) -> Tensor:
        t = u.sqrt_().mul_(math.sqrt(3))
        decay = (t * -LOG2_E).exp2_()
        return t.add_(1).mul_(decay)


@dataclass(frozen=True)
class Matern52(_Radial):
    """(1 + t + t²/3) exp(-t), t = sqrt(5) ||x - z|| / sigma."""

    name = "matern52"

    def _profile_(self, u: Tensor) -> Tensor:
        t = u.sqrt_().mul_(math.sqrt(5))
        decay = (t * -LOG2_E).exp2_()
        polynomial = (t / 3).add_(1)
        return t.mul_(polynomial).add_(1).mul_(decay)


@dataclass(frozen=True)
class ExponentialPower(_Radial):
    """exp(-(||x - z|| / sigma)^p), 0 < p <= 2: p = 1 is the Laplacian."""

    exponent: float = 1.0
    name = "exponential_power"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.exponent <= 2:
            raise ValueError(
                "`exponent` must lie in (0, 2], where the kernel is positive definite. "
                f"Got {self.exponent!r} instead."
            )

    def _profile_(self, u: Tensor) -> Tensor:
        return u.pow_(self.exponent / 2).mul_(-LOG2_E).exp2_()


@dataclass(frozen=True)
class NeuralTangent(_Radial):
    """Neural tangent kernel of an infinitely wide ReLU network with `depth` hidden layers.

    The input is (x / sigma, 1), the 1 being the bias.  With u_0 the cosine between two inputs and
    c_0 = c_1 = 1 at u = 1,

        kappa_0(u) = (pi - theta) / pi              kappa_1(u) = (u (pi - theta) + sin theta) / pi
        u_{h+1} = kappa_1(u_h)                      Theta_{h+1} = Theta_h kappa_0(u_h) + u_{h+1}

    and k(x, z) = |x| |z| Theta_depth, so that k(x, x) = (depth + 1) |x|².
    """

    depth: int = 2
    name = "neural_tangent"
    translation_invariant = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.depth, int) and self.depth >= 1):
            raise ValueError(f"`depth` must be a whole number, at least 1. Got {self.depth!r} instead.")

    def _profile_(self, u: Tensor) -> Tensor:
        raise NotImplementedError("The neural tangent kernel is not a function of distance alone.")

    def _lengths(self, a: Points) -> Tensor:
        return (a.squared_norms / self.bandwidth**2 + 1).sqrt_()  # (n,)

    def block(self, a: Points, b: Points, *, same: bool = False, out: Tensor | None = None) -> Tensor:
        d2 = squared_distances(a, b, same, out, self._factor)  # (m, t)
        length_a, length_b = self._lengths(a)[:, None], self._lengths(b)[None, :]
        scale = length_a * length_b  # (m, t)
        # The angle from the chord, 1 - cos = (d² - (|x| - |z|)²) / (2 |x| |z|): the cosine itself
        # has no digits left for points that are close together.
        chord = d2.sub_((length_a - length_b).square_()).clamp_(min=0)  # (m, t)
        theta = chord.div_(4 * scale).clamp_(max=1).sqrt_().asin_().mul_(2)  # (m, t)
        u = torch.cos(theta)
        tangent = u.clone()
        for _ in range(self.depth):
            straight = (math.pi - theta) / math.pi  # kappa_0
            u = (u * straight).add_(torch.sin(theta), alpha=1 / math.pi).clamp_(-1, 1)  # kappa_1
            tangent.mul_(straight).add_(u)
            theta = torch.acos(u)
        result = tangent.mul_(scale)
        return result if out is None else out.copy_(result)

    def diagonal(self, a: Points) -> Tensor:
        return (self.depth + 1) * self._lengths(a).square_()


@dataclass(frozen=True)
class Custom(Kernel):
    """Any positive definite function of two tensors, (m, d) and (t, d) to (m, t)."""

    function: Callable[[Tensor, Tensor], Tensor]
    name = "custom"
    translation_invariant = False

    def points(self, x: Tensor) -> Points:
        return Points(x, x.new_zeros(len(x)), 0.0)  # norms are the function's own business

    def block(self, a: Points, b: Points, *, same: bool = False, out: Tensor | None = None) -> Tensor:
        values = self.function(a.x, b.x)
        if not isinstance(values, Tensor) or values.shape != (len(a), len(b)):
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(
                f"A kernel function must return a tensor of shape {(len(a), len(b))} for inputs of "
                f"{len(a)} and {len(b)} rows. Got {got} instead."
            )
        return values.to(a.dtype) if out is None else out.copy_(values)

    def diagonal(self, a: Points) -> Tensor:
        pieces = [
            self.block(piece, piece, same=True).diagonal()
            for piece in (a[i : i + DIAGONAL_ROWS] for i in range(0, len(a), DIAGONAL_ROWS))
        ]
        return torch.cat(pieces)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "function": getattr(self.function, "__qualname__", "function")}

    def __str__(self) -> str:
        return f"custom ({self.to_dict()['function']})"


KERNELS: dict[str, type[_Radial]] = {
    cls.name: cls
    for cls in (Gaussian, Laplacian, Cauchy, Matern32, Matern52, ExponentialPower, NeuralTangent)
}


def as_kernel(kernel: str | Kernel | Callable[[Tensor, Tensor], Tensor], bandwidth: float) -> Kernel:
    """A kernel from a name (which takes `bandwidth`), a `Kernel` (which has its own) or a function."""
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, str) and kernel in KERNELS:
        return KERNELS[kernel](bandwidth=bandwidth)
    if callable(kernel):
        return Custom(kernel)
    raise ValueError(
        f"`kernel` must be one of {', '.join(sorted(KERNELS))}, a mercer kernel or a function of "
        f"two tensors. Got {kernel!r} instead."
    )


def in_units(kernel: Kernel, unit: float) -> Kernel:
    """The same kernel for data divided by `unit`; the kernel must have a bandwidth."""
    if not isinstance(kernel, _Radial):
        raise ValueError(f"Only a kernel with a bandwidth can change units. Got {kernel} instead.")
    return replace(kernel, bandwidth=kernel.bandwidth / unit)


def kernel_from_dict(data: dict[str, Any]) -> Kernel:
    """The kernel that `Kernel.to_dict` described."""
    name = data.get("name")
    if name not in KERNELS:
        raise ValueError(
            f"A stored kernel must be one of {', '.join(sorted(KERNELS))}. Got {name!r} instead: "
            "a kernel function of your own cannot be read back from data, so pass it again."
        )
    return replace(KERNELS[name](), **{key: value for key, value in data.items() if key != "name"})
