"""Ranks that were given different things are told so before they train."""

from __future__ import annotations

from collections.abc import Mapping

from mercer.processes.group import Group, RankError


def check_same(group: Group, facts: Mapping[str, str]) -> None:
    """Raise on all ranks for the first fact that a rank has otherwise than rank 0, naming it."""
    found = group.gathered(dict(facts))
    for rank, others in enumerate(found):
        for name, value in found[0].items():
            other = others.get(name, "nothing")
            if other != value:
                raise RankError(
                    f"All ranks must have the same {name}. Rank {rank} ({group.seats[rank]}) has "
                    f"{other}, and rank 0 has {value}."
                )
