"""Options that belong together, declared once for all subcommands that have them.

`grouped` lets a subcommand take such a group as one argument:

    @app.command()
    @grouped
    def evaluate(model: ModelFile, data: Data, file: FileOptions) -> None: ...

On the command line the fields of a group are options like any others, at the place of the group.
Nothing heavy is imported here: `mercer --help` and shell completion must not wait for PyTorch.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_type_hints

from mercer.cli.options import (
    Bandwidth,
    Category,
    Centers,
    ClassWeight,
    DatesOption,
    Decimal,
    Device,
    DeviceFlops,
    DeviceMemory,
    DeviceTraffic,
    Drop,
    Encoding,
    Epochs,
    Header,
    Holdout,
    Jobs,
    Keep,
    Kernel,
    KernelOption,
    LinkLatency,
    LinkRate,
    MaxColumns,
    MaxUnpacked,
    Memory,
    Metric,
    Number,
    Ranks,
    Ridge,
    Scale,
    ScaleOption,
    Seed,
    Sheet,
    Target,
    TaskOption,
    Test,
    TestTarget,
    Weight,
)
from mercer.planning.memory import MOST_COLUMNS


@dataclass(frozen=True)
class ColumnOptions:
    """What to learn, and from which columns."""

    target: Target = None
    task: TaskOption = None
    drop: Drop = None
    keep: Keep = None
    category: Category = None
    number: Number = None
    decimal: Decimal = None
    dates: DatesOption = None
    weight: Weight = None
    class_weight: ClassWeight = None


@dataclass(frozen=True)
class TestOptions:
    """Which rows the final score is measured on."""

    __test__ = False  # pytest would collect it

    holdout: Holdout = None
    test: Test = None
    test_target: TestTarget = None


@dataclass(frozen=True)
class ModelOptions:
    """The kernel machine, and the machine that it is trained on."""

    kernel: KernelOption = Kernel.auto
    bandwidth: Bandwidth = None
    ridge: Ridge = None
    scale: ScaleOption = Scale.auto
    metric: Metric = True
    centers: Centers = "auto"
    epochs: Epochs = 100
    memory: Memory = "auto"
    device: Device = "auto"
    n_jobs: Jobs = None
    seed: Seed = 0


@dataclass(frozen=True)
class ClusterOptions:
    """Devices that are not here."""

    ranks: Ranks = None
    device_memory: DeviceMemory = None
    device_flops: DeviceFlops = None
    device_traffic: DeviceTraffic = None
    link_rate: LinkRate = None
    link_latency: LinkLatency = None


@dataclass(frozen=True)
class FileOptions:
    """How a data file is laid out, and how much it may claim."""

    encoding: Encoding = None
    header: Header = None
    sheet: Sheet = None
    max_columns: MaxColumns = MOST_COLUMNS
    max_unpacked: MaxUnpacked = "auto"


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its groups in place of the groups."""
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for one in inspect.signature(command).parameters.values():
        kind = hints[one.name]
        if not is_dataclass(kind):
            parameters.append(one.replace(annotation=kind, kind=one.KEYWORD_ONLY))
            continue
        types = get_type_hints(kind, include_extras=True)
        groups[one.name] = (kind, [field.name for field in fields(kind)])
        parameters += [
            inspect.Parameter(
                field.name, one.KEYWORD_ONLY, default=field.default, annotation=types[field.name]
            )
            for field in fields(kind)
        ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        made = {
            name: kind(**{field: given.pop(field) for field in names})
            for name, (kind, names) in groups.items()
        }
        command(**given, **made)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run
