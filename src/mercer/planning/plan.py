"""Plan: the frozen record of every number chosen for a training run, and how it reads."""

from __future__ import annotations

import html
import json
from dataclasses import asdict, dataclass, fields
from typing import Any

EIGHT_BIT = "exact, of 8-bit integers"


def working_memory(n: int, n_outputs: int, s: int, element_size: int) -> float:
    """Bytes beside the data and kept kernel values: weights, targets and copies, spectrum, workspace."""
    per_point = 6 * n_outputs + 4
    return element_size * (n * per_point + 5 * s * s + (1 << 22))


@dataclass(frozen=True)
class FreshEstimate:
    """What fresh training points say about the levelled kernel k_q."""

    q: int
    beta: float  # mean of k_q(x, x)
    beta_max: float  # largest of them
    lambda_1: float  # largest eigenvalue of K_q / n

    @property
    def critical_batch_size(self) -> float:
        """m*(k_q) = beta / lambda_1."""
        return self.beta / self.lambda_1

    def critical(self, ridge: float, n: int) -> float:
        """The same for K_q + r I."""
        return (self.beta + ridge) / (self.lambda_1 + ridge / n)


@dataclass(frozen=True)
class Plan:
    """Every chosen number of a run; `print(plan)` explains them, `to_json` keeps them."""

    n: int
    d: int
    n_outputs: int
    kernel: str
    device: str
    device_name: str
    precision: str
    capacity: float  # C_G, operations
    memory: float  # S_G, bytes
    capacity_batch_size: float  # m_C
    memory_batch_size: int  # m_S
    device_batch_size: int  # m_G
    subsample_size: int  # s
    preconditioner_rank: int  # q
    paper_rule: FreshEstimate  # the paper's q, seen by fresh points
    paper_rule_own_critical: float  # m* of that q as the subsample sees itself
    beta_plain: float  # beta(K)
    lambda_1_plain: float  # lambda_1(K)
    beta: float  # beta(K_G), with the ridge
    beta_max: float
    lambda_1: float  # lambda_1(K_G), with the ridge
    batch_size: int  # m
    step_size: float  # eta
    ridge: float
    products: str  # how inner products are made
    kept_memory: float  # bytes of kernel values kept from the first epoch for later ones
    bound: str  # which limit set the batch: capacity, memory, spectrum, data, or set by hand
    eigenvalues: tuple[float, ...]  # lambda_i of the kernel, descending, before levelling
    first_epoch_seconds: float | None = None  # predicted, where the device's rates are known
    later_epoch_seconds: float | None = None
    preparation: str = "as given"  # what is done to the features
    data_on_disk: bool = False  # more than the memory allows, read from a file as it is needed
    notes: tuple[str, ...] = ()  # fallbacks

    @property
    def critical_batch_size_plain(self) -> float:
        """m*(k) of the kernel as given."""
        return self.beta_plain / self.lambda_1_plain

    @property
    def critical_batch_size(self) -> float:
        """m*(k_G) of the levelled kernel."""
        return self.beta / self.lambda_1

    @property
    def acceleration(self) -> float:
        """Predicted speed-up over plain SGD at its own best batch (paper, section 4)."""
        plain = max(1.0, self.critical_batch_size_plain)
        return self.beta_plain / self.beta * min(self.batch_size, self.critical_batch_size) / plain

    @property
    def peak_memory(self) -> float:
        """Bytes the run takes: data, weights and copies, targets, preconditioner, kept kernel values."""
        size = 8 if self.precision == "float64" else 4
        data = self.n * self.d * (1 if self.products == EIGHT_BIT else size)
        if self.data_on_disk:
            data = 0
        return (
            data + working_memory(self.n, self.n_outputs, self.subsample_size, size) + self.kept_memory
        )

    @property
    def advice(self) -> str:
        """What set the batch, and what would change it."""
        spectrum, device = _short(self.critical_batch_size), _short(self.device_batch_size)
        if self.bound == "capacity":
            return f"the device is busy at {device}, a larger batch would not run faster"
        if self.bound == "memory":
            return f"no more than {device} fit; more `memory` would help, the spectrum allows {spectrum}"
        if self.bound == "spectrum":
            return (
                f"the device could use {device} but the spectrum only {spectrum}; a larger s would help"
            )
        if self.bound == "data":
            return "all points are in the subsample and could be in one batch"
        return "the batch was given"

    def rows(self) -> list[tuple[str, str, str]]:
        """(name, value, meaning) for each line of the table."""
        s, q = self.subsample_size, self.preconditioner_rank
        paper = self.paper_rule
        rows = [
            ("data", f"{self.n:,} × {self.d:,}", f"points × features; outputs: {self.n_outputs:,}"),
            (
                "features",
                "",
                self.preparation + "; in a file, as memory is short" * self.data_on_disk,
            ),
            ("kernel", self.kernel, f"{self.precision} on {self.device} ({self.device_name})"),
            ("C_G", _short(self.capacity), "operations in flight that saturate the device"),
            (
                "S_G",
                _bytes(self.memory),
                f"memory to be used; this run needs {_bytes(self.peak_memory)}",
            ),
            ("kept", _bytes(self.kept_memory), f"kernel values kept; inner products {self.products}"),
            ("m_C", _short(self.capacity_batch_size), "batch that keeps the device busy"),
            ("m_S", _short(self.memory_batch_size), "batch whose kernel block would fit in memory"),
            ("m_G", _short(self.device_batch_size), "batch the device can use"),
            ("m*(k)", f"{self.critical_batch_size_plain:.1f}", "largest useful batch without levelling"),
            ("s", f"{s:,}", "subsample for the spectrum"),
            (
                "q (paper's rule)",
                f"{paper.q:,}",
                f"m* {self.paper_rule_own_critical:,.0f} by the subsample itself, "
                f"{paper.critical_batch_size:,.0f} by fresh points",
            ),
            ("q", f"{q:,}", "eigenvalues levelled"),
            ("beta(K_G)", f"{self.beta:.3g}", f"mean of k_G(x, x); largest seen {self.beta_max:.3g}"),
            ("m*(k_G)", _short(self.critical_batch_size), "largest useful batch after levelling"),
            ("m", f"{self.batch_size:,}", f"batch, bound by {self.bound}: {self.advice}"),
            ("eta", f"{self.step_size:.4g}", "step"),
            (
                "ridge",
                f"{self.ridge:.3g}",
                "0 interpolates" if self.ridge == 0 else "noise level per point",
            ),
            ("acceleration", f"{self.acceleration:.0f} ×", "predicted over plain SGD"),
        ]
        if self.first_epoch_seconds is not None and self.later_epoch_seconds is not None:
            value = f"{_seconds(self.first_epoch_seconds)}, {_seconds(self.later_epoch_seconds)}"
            rows.append(("time", value, "predicted for the first epoch and for each later one"))
        return rows + [("note", "", note) for note in self.notes]

    def __str__(self) -> str:
        rows = self.rows()
        names = max(len(name) for name, _, _ in rows)
        values = max(len(value) for _, value, _ in rows)
        return "\n".join(f"{a:<{names}}  {b:>{values}}  {c}".rstrip() for a, b, c in rows)

    def _repr_html_(self) -> str:
        cells = "".join(
            "<tr>" + "".join(f"<td style='text-align:left'>{html.escape(c)}</td>" for c in row) + "</tr>"
            for row in self.rows()
        )
        return f"<table><caption>Mercer plan</caption>{cells}</table>"

    def to_json(self, indent: int | None = 1) -> str:
        """The plan as JSON text; infinity is written as a string, since JSON has none."""
        return json.dumps({k: _finite(v) for k, v in asdict(self).items()}, indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote."""
        data: dict[str, Any] = json.loads(text)
        names = {f.name for f in fields(cls)}
        if not isinstance(data, dict) or set(data) != names:
            odd = sorted(names ^ set(data)) if isinstance(data, dict) else type(data).__name__
            raise ValueError(
                f"A plan must have exactly the fields of `Plan`. Got a difference in {odd}."
            )
        data = {k: float(v) if v == "Infinity" else v for k, v in data.items()}
        data["paper_rule"] = FreshEstimate(**data["paper_rule"])
        data["notes"] = tuple(data["notes"])
        data["eigenvalues"] = tuple(data["eigenvalues"])
        return cls(**data)


def _finite(value: Any) -> Any:
    return "Infinity" if value == float("inf") else value


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 100 else f"{value / 60:.0f} min"


def _short(value: float) -> str:
    if value == float("inf"):
        return "no limit"
    return f"{value:.2g}" if value >= 1e7 else f"{value:,.0f}"


def _bytes(value: float) -> str:
    return f"{value / 1024**3:.2f} GiB" if value >= 1024**3 else f"{value / 1024**2:.0f} MiB"
