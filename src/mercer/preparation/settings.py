"""What the user asked for, and the devices that it is to be done on."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from mercer.operators.workers import threads
from mercer.planning.calibration import measure_resource
from mercer.planning.levelling import Requests
from mercer.planning.resource import Resource, with_memory
from mercer.planning.together import resource_of_all
from mercer.processes.group import Group
from mercer.selection.setting import SettingRequest
from mercer.training.stopping import Limits


@dataclass(frozen=True)
class Settings:
    """What the user asked for; what is left out, the method chooses."""

    limits: Limits
    setting: SettingRequest = field(default_factory=SettingRequest)
    requests: Requests = field(default_factory=Requests)
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    resource: Resource | None = None  # a user-specified device; None measures the real one
    memory: float | None = None  # bytes that may be used; None for half of what is free
    n_centers: int | Literal["auto"] | None = None  # None: every row is a centre


def measured_resource(settings: Settings, group: Group) -> Resource:
    """The devices of all ranks, or the one that the user specified, shared by them."""
    if settings.resource is not None:
        resource = settings.resource
        if group.size > 1:
            resource = replace(resource, ranks=group.size)
    else:
        device, dtype = settings.device, settings.dtype
        resource = resource_of_all(lambda: measure_resource(device, dtype), group)
    return with_memory(resource, settings.memory)


def all_cores(group: Group) -> AbstractContextManager[None]:
    """While the other ranks wait, one may use the cores of all that share them."""
    return nullcontext() if group.size == 1 else threads(len(group.seats[group.rank].cores))
