"""What ranks tell one another: decisions of rank 0, and questions that it asks meanwhile."""

from __future__ import annotations

import pytest
import torch
from ranks import RankPool, group_of_all


@pytest.fixture(scope="module")
def pool():
    pool = RankPool(3)
    yield pool
    pool.close()


class Parts:
    """A number on each rank."""

    def __init__(self, group):
        self.group = group
        self.number = group.enlist(self)

    def answer(self, factor):
        mine = torch.tensor([factor * 10**self.group.rank])
        self.group.add(mine)
        return int(mine)


def asked(what):
    group = group_of_all()
    first, parts = Parts(group), Parts(group)

    def decide():
        assert group.is_first
        if what == "fails":
            raise KeyError("none")
        inner = group.decided(lambda: group.ask(parts.number, 3))
        return inner, group.ask(first.number, 5)

    if what == "apart":
        group.apart = True
    try:
        if what in ("apart", "ended"):
            group.ended = what == "ended"
            return group.ask(parts.number, 1)
        together = group.ask(parts.number, 2)
        return together, group.decided(decide), group.deciding
    except (KeyError, RuntimeError) as error:
        return str(error)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_others_answer_while_rank_0_decides(pool, size):
    ones = int("1" * size)
    assert pool.run(size, asked, "decides") == [(2 * ones, (3 * ones, 5 * ones), False)] * size


def test_an_error_of_a_decision_is_raised_on_all_ranks(pool):
    assert pool.run(2, asked, "fails") == ["'none'"] * 2


@pytest.mark.parametrize("what", ["apart", "ended"])
def test_a_question_that_nobody_answers_is_refused(pool, what):
    for told in pool.run(2, asked, what):
        assert told.startswith("What is shared out over 2 ranks needs all of them at once. Got a call")
