from __future__ import annotations

import time

import pytest

from mercer.stopwatch import Stopwatch, fastest


@pytest.fixture
def clock(monkeypatch):
    """The readings of the clock, in order."""
    readings: list[float] = []
    monkeypatch.setattr(time, "perf_counter", lambda: readings.pop(0))
    return readings


def test_a_running_stopwatch_counts_from_when_it_was_made(clock):
    clock += [10.0, 12.5, 14.0]
    watch = Stopwatch()
    assert watch.seconds == 2.5
    assert watch.seconds == 4.0


def test_a_block_stops_it_also_when_it_fails(clock):
    clock += [10.0, 13.0]
    watch = Stopwatch()

    def fail():
        with watch:
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        fail()
    assert watch.seconds == watch.seconds == 3.0


def test_fastest_is_the_shortest_of_the_runs(clock):
    clock += [0.0, 3.0, 5.0, 6.0, 10.0, 12.0]
    done = []
    assert fastest(lambda: done.append(1), 3) == 1.0
    assert len(done) == 3
