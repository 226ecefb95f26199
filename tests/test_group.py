"""What ranks tell one another: decisions of rank 0, and questions that it asks meanwhile."""

from __future__ import annotations

import pytest
import torch
from ranks import group_of_all
from stand_in import StandIn

from mercer.processes.packing import packed, unpacked


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


class Unsendable:
    """What cannot be packed, with an error of a kind that lost connections raise, too."""

    def __reduce__(self):
        raise RuntimeError("cannot be packed")


def sends_what_cannot_be_packed():
    """Rank 0 fails before the others begin to wait for its object, and can still tell them."""
    group = group_of_all()
    try:
        if group.is_first:
            group.from_first(Unsendable())
    except RuntimeError as error:
        return str(error), group.gathered("here")
    return "", group.gathered("here")


def test_an_object_that_cannot_be_packed_is_an_error_of_its_own_rank(pool):
    first, second = pool.run(2, sends_what_cannot_be_packed)
    assert first == ("cannot be packed", ["here"] * 2)
    assert second == ("", ["here"] * 2)


def test_tensors_arrive_on_the_device_of_their_receiver():
    with StandIn() as gpu:
        numbers = torch.arange(3.0, device=gpu.device)
        sent = packed({"there": numbers, "here": torch.ones(2), "number": 7})
        found = unpacked(sent, lambda: gpu.device)
        assert found["there"].device == gpu.device
        assert found["there"].tolist() == [0.0, 1.0, 2.0]
        assert found["here"].device == torch.device("cpu")
        assert unpacked(sent, lambda: torch.device("cpu"))["there"].device == torch.device("cpu")
