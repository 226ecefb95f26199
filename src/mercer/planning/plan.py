"""Plan: the frozen record of every number chosen for a training run."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from mercer.data.dealt_points import AnyPoints
from mercer.files.records import from_data, to_data
from mercer.kernels.base import Kernel
from mercer.method.critical_batch import FreshEstimate
from mercer.method.schedule import make_schedule
from mercer.method.step import Step, best_step_size
from mercer.operators.fixed_point import FixedPoint
from mercer.operators.tiled import panel_rows
from mercer.planning import plan_text
from mercer.planning.memory import (
    centres_bytes,
    centres_data_bytes,
    data_bytes,
    kept_bytes,
    normal_bytes,
    work_bytes,
)
from mercer.planning.resource import Resource
from mercer.planning.sending import sent_with_centres

EIGHT_BIT = "exact, of 8-bit integers"


@dataclass(frozen=True)
class Plan:
    """Every chosen number of a run; `print(plan)` explains them, `to_json` writes them down."""

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
    paper_rule: FreshEstimate  # the paper's q, on fresh points
    paper_rule_own_critical: float  # m* of that q, on the subsample itself
    beta_plain: float  # beta(K)
    lambda_1_plain: float  # lambda_1(K)
    beta: float  # beta(K_G), with the ridge
    beta_max: float
    lambda_1: float  # lambda_1(K_G), with the ridge
    batch_size: int  # m
    step_size: float  # eta
    ridge: float
    products: str  # how inner products are computed
    kept_memory: float  # bytes of kernel values kept from the first epoch for later ones
    bound: str  # what limits the batch: capacity, memory, spectrum, data, or set by the user
    eigenvalues: tuple[float, ...]  # lambda_i of the kernel, descending, before levelling
    first_epoch_seconds: float | None = None  # predicted, where the device's rates are known
    later_epoch_seconds: float | None = None
    expected_epochs: int | None = None  # until training stops
    preparation: str = "as given"  # what is done to the features
    data_on_disk: bool = False  # the data is memory-mapped
    kept_as: FixedPoint | None = None  # how kept values are stored; None for as they are
    notes: tuple[str, ...] = ()  # fallbacks
    direct: bool = False  # the equations are solved at once, by one exact step or in one pass over rows
    ranks: int = 1  # processes that train together
    dealt: bool = False  # each rank holds only the points of its own columns and the subsample
    n_held_out: int = 0
    n_closing: int = 0  # of them, those that are trained on in the end
    n_centers: int | None = None  # p; None where every row is a centre
    n_temporary: int = 0  # rows that may be temporary centres at once
    kept_rows_memory: float = 0.0  # bytes of values of rows with fewer centres, kept like the others
    rank_reason: str = ""  # why no more eigenvalues are levelled
    all_centers_seconds: float | None = None  # predicted for a run in which every row is a centre

    @property
    def step(self) -> Step:
        """What training reads of the plan."""
        ridge = self.ridge if self.n_centers is None else 0.0  # which then is no part of the step
        return Step(self.step_size, self.batch_size, self.beta, ridge, self.direct)

    @property
    def n_weighted(self) -> int:
        """Centres that the trained model has."""
        return self.n + self.n_closing if self.n_centers is None else self.n_centers

    @property
    def step_on_centres(self) -> Step:
        """The step of projections onto fewer centres than rows."""
        assert self.n_centers is not None
        m = min(self.batch_size, self.n_centers)
        return Step(best_step_size(m, self.beta, self.lambda_1), m, self.beta)

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
    def expected_seconds(self) -> float | None:
        """Seconds of training until it is expected to stop, where epochs were predicted."""
        first, later, epochs = self.first_epoch_seconds, self.later_epoch_seconds, self.expected_epochs
        if first is None or later is None or epochs is None:
            return None
        return first + (epochs - 1) * later

    @property
    def peak_memory(self) -> float:
        """Bytes that all ranks take: data, weights, targets, preconditioner, kept kernel values."""
        return self._data_bytes + self._work_bytes + self.kept_memory + self.kept_rows_memory

    @property
    def sent_bytes(self) -> tuple[float, float]:
        """Bytes that a rank gives to be added over ranks, in the first epoch and in each later one.

        Sums of f are in float64, two numbers for each of training in float64.  Z is sent again where it
        is not kept, and points that are dealt to the ranks where not all values are.
        """
        if self.ranks == 1:
            return 0.0, 0.0
        if self.n_centers is not None:
            return sent_with_centres(self)
        sums = self.n * self.n_outputs * self.sum_bytes
        Z = self._Z_bytes
        points = (self.n - self.subsample_size) * self.row_bytes if self.dealt else 0.0
        later = 0.0 if self.kept_for_training >= Z else Z
        return sums + Z + points, sums + later + (0.0 if self.keeps_all else points)

    @property
    def sum_bytes(self) -> float:
        """Bytes of a sum that does not depend on who adds it."""
        return 8.0 if self.precision == "float32" else 16.0

    @property
    def row_bytes(self) -> float:
        """Bytes of a point as it is stored and sent."""
        return float((self.d if self.products == EIGHT_BIT else self.d + 2) * self._stored_size)

    @property
    def keeps_all(self) -> bool:
        """Whether later epochs of a group of ranks evaluate no kernel values."""
        n, s, m = self.n, self.subsample_size, self.batch_size
        panels = make_schedule(n, s, m, panel_rows(torch.device(self.device))).panels
        values = sum(len(panel) * max(panel.stop, s) for panel in panels)
        return self._element_size * values + self._Z_bytes <= self.kept_for_training

    @property
    def kept_rows_share(self) -> float:
        """Of the values of rows with fewer centres, what later epochs read instead of evaluating it."""
        return min(1.0, self.kept_rows_memory / (self.n * self.n_weighted * self._element_size))

    @property
    def _Z_bytes(self) -> float:
        return float(self.n * self.preconditioner_rank * self._element_size)

    @property
    def kept_for_training(self) -> float:
        """Bytes that kept values of the held-out part, which come first, leave for others."""
        held_out = self.n_weighted * self.n_held_out * self._element_size
        return self.kept_memory - (held_out if held_out <= self.kept_memory else 0)

    def within(self, memory: float, held_out: int) -> Plan:
        """The plan with no more kernel values kept than so many bytes leave room for."""
        room = kept_bytes(
            memory,
            work=self._work_bytes,
            data=self._data_bytes,
            held_out=self.ranks * held_out,
            d=self.d,
            wanted=math.inf,
            element_size=self._element_size,
        )
        kept = min(self.kept_memory, room)
        of_rows = min(self.kept_rows_memory, room - kept)
        return replace(self, kept_memory=kept, kept_rows_memory=of_rows)

    @property
    def _element_size(self) -> int:
        return 8 if self.precision == "float64" else 4

    @property
    def _data_bytes(self) -> float:
        """The rows in memory."""
        n = self.n + self.n_closing
        if self.n_centers is not None and not self.data_on_disk:
            parts = (n, self.n_centers, self.d, self.ranks, self._stored_size, self.dealt)
            return centres_data_bytes(*parts)
        common = self.subsample_size if self.dealt else None
        size = data_bytes(n, self.d, self.ranks, self._stored_size, common)
        return 0.0 if self.data_on_disk else size

    @property
    def _stored_size(self) -> int:
        """Bytes of a feature."""
        return 1 if self.products == EIGHT_BIT else self._element_size

    @property
    def _work_bytes(self) -> float:
        n = self.n + self.n_closing
        s = self.n if self.direct else self.subsample_size
        if self.n_centers is not None:
            p, w = self.n_centers, self.n_temporary
            rows = panel_rows(torch.device(self.device))
            if self.direct:
                return self.ranks * normal_bytes(n, p, rows, self.n_outputs, self._element_size)
            rows = max(self.batch_size, rows)
            parts = (n, p, w, rows, self.n_outputs, s, self._element_size, self.ranks)
            return centres_bytes(*parts)
        return self.ranks * work_bytes(n, self.n_outputs, s, self._element_size)

    @property
    def advice(self) -> str:
        """What limits the batch, and what would change it."""
        return plan_text.advice(self)

    def rows(self) -> list[tuple[str, str, str]]:
        """(name, value, meaning) for each line of the table."""
        return plan_text.rows(self)

    def __str__(self) -> str:
        return plan_text.table(self)

    def _repr_html_(self) -> str:
        return plan_text.html_table(self)

    def to_json(self, indent: int | None = 1) -> str:
        """The plan as JSON text; infinity is written as a string, since JSON has none."""
        return json.dumps(to_data(self), indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote, by this version or another."""
        return from_data(cls, json.loads(text), "A plan")


def of_the_run(kernel: Kernel, points: AnyPoints, n_outputs: int, resource: Resource) -> dict[str, Any]:
    """What any plan says of the data and of the device, as fields of `Plan`."""
    n, d = points.shape
    precision = str(points.dtype).removeprefix("torch.")
    return {
        "n": n,
        "d": d,
        "n_outputs": n_outputs,
        "kernel": str(kernel),
        "device": resource.device,
        "device_name": resource.name,
        "precision": precision,
        "products": EIGHT_BIT if points.is_bytes else f"in {precision}",
        "capacity": resource.capacity,
        "memory": resource.usable,
        "ranks": resource.ranks,
    }
