"""Settings of Hypothesis for the laws in this folder, and a device that is the same everywhere."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings

# The same examples on every machine and in every run.  A fit takes milliseconds to a tenth of a second,
# so a few examples of each law are what a test run has time for.
settings.register_profile(
    "laws",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=10,
    phases=[Phase.explicit, Phase.generate],  # data comes from seeds, of which none is simpler
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("laws")


@pytest.fixture(autouse=True)
def _same_plan(on_desk):
    """Plans depend on the device; two fits of one law must not be measured apart."""


@pytest.fixture(autouse=True)
def _one_thread():
    """A hundred rows are too few to share."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
