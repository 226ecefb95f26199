from __future__ import annotations

import pytest

from mercer.method.schedule import batches, make_schedule


@pytest.mark.parametrize(("n", "s", "m"), [(100, 30, 7), (100, 100, 40), (10, 3, 50), (5, 0, 2)])
def test_batches_cover_every_point_once_and_respect_the_subsample(n, s, m):
    found = batches(n, s, m)
    assert [i for b in found for i in range(b.start, b.stop)] == list(range(n))
    assert all(b.stop - b.start <= m for b in found)
    assert all(b.stop <= s or b.start >= s for b in found)


def test_every_epoch_visits_every_batch_once_in_another_order():
    schedule = make_schedule(1000, 200, 30, 100)
    orders = []
    for epoch in (1, 2, 3):
        visits = schedule.visits(epoch)
        assert all(set(map(str, v.batches)) == set(map(str, v.panel.batches)) for v in visits)
        orders.append([batch.start for visit in visits for batch in visit.batches])
    assert orders[0] == sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
    assert len({tuple(order) for order in orders}) == 3
    assert schedule.visits(2) == schedule.visits(2)  # a resumed run goes on in the same order


def test_only_the_first_epoch_skips_columns_beyond_the_panel():
    schedule = make_schedule(1000, 200, 50, 100)
    panel = schedule.panels[4]
    assert schedule.columns_needed(panel, 1, 0) == panel.stop
    assert schedule.columns_needed(panel, 1, 800) == 800  # a warm start has weights there
    assert schedule.columns_needed(panel, 2, 0) == 1000
    whole = make_schedule(1000, 200, 50, 100, triangular=False)
    assert whole.columns_needed(panel, 1, 0) == 1000
